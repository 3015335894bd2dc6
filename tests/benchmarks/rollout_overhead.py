"""What a turn of an episode costs besides sampling and tools: the whole runner with a scripted engine.

    python tests/benchmarks/rollout_overhead.py [--json OUT.json]   # prints microseconds a turn

1,024 episodes run at once, in groups of 8, of five turns each: words and a call in four, an answer in the last. The
engine answers with tokens from a script at once, so nothing is sampled; all else is what a run has: the chat format
`template` with the template of Qwen2.5 (TRL's, so `pip install trl`), the parser `hermes`, two tools with checked
arguments, time limits and cut results, a reward, end flags, exactness checks. `coroutines` has two
coroutines as tools, `threads` a coroutine and a function that runs in a thread; `recorded` is `coroutines` with every
episode written to a run folder. `one each` has groups of one, so that each episode brings a prompt of its own.

A round runs all of them, every other one in the opposite order; a figure is the median of the rounds, a ratio the
median of the rounds' ratios to `coroutines`. Time is processor time of all threads. The exit status is 1 where
`coroutines` takes more than a millisecond.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import logging
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_tokenizer import make_tokenizer

from toolrl.config.tool_policy import PolicyOptions
from toolrl.parsing.flags import EndFlags
from toolrl.protocols import BuildContext
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.runs.episodes import EpisodeStore
from toolrl.tools import as_toolset, tool
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.truncate import token_cut
from toolrl.types import Episode, Generation, Group, Message, Sampling, Score, Task
from toolrl_plugin_chat.template import TemplateFormat
from toolrl_plugin_qwen.hermes import HermesParser

TARGET = 1000.0
"""Microseconds of processor time a turn, at most."""
GROUP, TURNS, WORDS, VARIANTS = 8, 5, 30, 64
"""Episodes of a group, turns of an episode, words of a turn, different episodes; more of them repeat these."""
LIMITS = Limits(max_turn_tokens=512, max_episode_tokens=8192)
SYSTEM = "You solve arithmetic word problems. Call a tool for every product and every sum, and give the number at last."
_WORDS = re.findall(r"\w+", "the number of boxes on each shelf is what we need so let us compute it and then go on")


def make_turn(variant: int, turn: int) -> tuple[str, str]:
    """What the model says: words and a call, or in the last turn an answer; and the call's result."""
    chance = random.Random(f"say {variant} {turn}")
    words = " ".join(chance.choices(_WORDS, k=WORDS))
    if turn == TURNS - 1:
        return f"{words}. The answer is {chance.randrange(1000)}.", ""
    a, b = chance.randrange(100, 1000), chance.randrange(100, 1000)
    call = json.dumps({"name": "multiply" if turn % 2 else "add", "arguments": {"a": a, "b": b}})
    return f"{words}.\n<tool_call>\n{call}\n</tool_call>", str(a * b if turn % 2 else a + b)


SCRIPT = [[make_turn(variant, turn) for turn in range(TURNS)] for variant in range(VARIANTS)]


class ScriptEngine:
    """An engine that answers with the script's tokens as soon as the event loop comes round. An episode's number is
    that of its task."""

    def __init__(self, tokenizer: Any) -> None:
        self._generations = [[self._generation(tokenizer, text) for text, _ in turns] for turns in SCRIPT]
        self._said: Counter[str] = Counter()
        self.calls = 0

    def _generation(self, tokenizer: Any, text: str) -> Generation:
        ids = (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)
        return Generation(ids, (-0.5,) * len(ids), "stop", stopped_by=ids[-1], versions=(0,) * len(ids))

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation:
        await asyncio.sleep(0)
        self.calls += 1
        turn = self._said[session]
        self._said[session] = turn + 1
        return self._generations[int(session.split("/")[1]) % VARIANTS][turn]

    async def close(self, session: str) -> None:
        self._said.pop(session, None)


@tool
async def add(a: int, b: int) -> str:
    """Add two whole numbers.

    Args:
        a: The first summand.
        b: The second summand.
    """
    return str(a + b)


def _multiply(a: int, b: int) -> str:
    """Multiply two whole numbers.

    Args:
        a: The first factor.
        b: The second factor.
    """
    return str(a * b)


@functools.wraps(_multiply)
async def _multiply_on_loop(a: int, b: int) -> str:
    return _multiply(a, b)


class EndsWell:
    """A reward that looks at the last turn."""

    async def score(self, episode: Episode) -> Score:
        right = "The answer is" in episode.turns[-1].content
        return Score(float(right), metrics={"correct": float(right)})


def make_environment(tokenizer: Any, *, coroutines: bool) -> Environment:
    """As a config with the template format, hermes, two tools and a reward gives it."""
    context = BuildContext("bench", tokenizer=tokenizer)
    chat = TemplateFormat(None, context)
    tools = [add, tool(name="multiply")(_multiply_on_loop if coroutines else _multiply)]
    entries = [ToolEntry(one.name, as_toolset(one, None, context), policy=PolicyOptions()) for one in tools]
    return Environment(
        "default",
        HermesParser(),
        chat,
        ToolBox(entries, cut=token_cut(chat)),
        [NamedReward("ends_well", EndsWell())],
        system_prompt=SYSTEM,
        end_flags=EndFlags(("answer",)),
        max_turns=TURNS,
    )


def make_tasks(count: int) -> list[Task]:
    """Tasks with different questions."""
    text = "A warehouse has {0} shelves with {1} boxes on each. How many boxes are there, and {0} more?"
    chance = random.Random(0)
    texts = [text.format(chance.randrange(100, 1000), chance.randrange(100, 1000)) for _ in range(count)]
    return [Task(str(number), (Message("user", text),)) for number, text in enumerate(texts)]


@dataclass(frozen=True)
class Side:
    """One way to run all episodes."""

    name: str
    run: Callable[[], Coroutine[Any, Any, int]]
    """Runs them once; how many turns that were."""


def make_side(
    name: str, tokenizer: Any, count: int, *, coroutines: bool = True, group: int = GROUP, record: bool = False
) -> Side:
    environment = make_environment(tokenizer, coroutines=coroutines)
    engine = ScriptEngine(tokenizer)
    rounds = iter(range(1_000_000))

    async def run() -> int:
        before = engine.calls
        with tempfile.TemporaryDirectory() as folder:
            store = EpisodeStore(Path(folder))
            write: Callable[[Episode], None] | None = store.add if record else None
            runner = Runner(engine, {"default": environment}, concurrency=count, on_episode=write)
            await environment.start()
            number = f"round-{next(rounds)}"
            groups = await runner.run(make_tasks(count // group), group, LIMITS, round_id=number)
            await environment.stop()
            if record:
                store.close_step(0, "rollout")
        check(groups)
        return engine.calls - before

    return Side(name, run)


def check(groups: Sequence[Group]) -> None:
    """Every episode did what its script says."""
    for episode in (episode for group in groups for episode in group.episodes):
        assert episode.failure is None, episode.failure
        script = SCRIPT[int(episode.task.id) % VARIANTS]
        assert len(episode.turns) == TURNS
        assert [record.result.text for record in episode.calls] == [result for _, result in script[:-1]]


def measure(sides: Sequence[Side], rounds: int) -> dict[str, list[float]]:
    """Microseconds a turn of each side in each round, after one round that isn't counted."""
    seen: dict[str, list[float]] = {side.name: [] for side in sides}
    order = list(sides)
    for number in range(rounds + 1):
        for side in order:
            gc.collect()
            begin = time.process_time()
            turns = asyncio.run(side.run())
            if number:
                seen[side.name].append((time.process_time() - begin) / turns * 1e6)
        order.reverse()
    return seen


def summary(seen: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Medians, and the ratio to `coroutines`."""
    return {
        name: {
            "cpu_us": statistics.median(times),
            "ratio": statistics.median(one / base for one, base in zip(times, seen["coroutines"], strict=True)),
        }
        for name, times in seen.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1024, help="at once; a multiple of 8")
    parser.add_argument("--rounds", type=int, default=4, help="timed rounds, after one that isn't")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and episodes, for a look")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    count, rounds = (256, 2) if options.quick else (options.episodes, options.rounds)
    logging.disable(logging.WARNING)
    tokenizer = make_tokenizer()
    sides = [
        make_side("coroutines", tokenizer, count),
        make_side("threads", tokenizer, count, coroutines=False),
        make_side("recorded", tokenizer, count, record=True),
        make_side("one each", tokenizer, count, group=1),
    ]
    result: dict[str, Any] = {"episodes": count, "turns": TURNS, "sides": summary(measure(sides, rounds))}
    print(f"{count} episodes at once, {TURNS} turns each\n{'':12}{'cpu, µs a turn':>16}{'ratio':>8}")
    for name, figures in result["sides"].items():
        print(f"{name:12}{figures['cpu_us']:16.0f}{figures['ratio']:8.2f}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(result["sides"]["coroutines"]["cpu_us"] > TARGET)


if __name__ == "__main__":
    sys.exit(main())
