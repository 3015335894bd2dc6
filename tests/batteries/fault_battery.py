"""Episodes with tools that do everything wrong, and what is lost by it.

    python tests/batteries/fault_battery.py --episodes 2000
    python tests/batteries/fault_battery.py --episodes 20000 --json   # on one line

A scripted engine makes episodes of four turns, each with one to three calls of random tools: tools that raise (also
what ends a process), hang on the event loop, in a thread and in a process, swallow their cancellation, return ten
megabytes or the wrong types, die with their process, flap, are down or crowded; and calls that can't be read or name
no tool. Besides, a part of the episodes is cancelled in the middle, as at the end of a run. Two tools with four stages,
one on the loop and one in threads, count these in every episode.

The exit status is 0 where no episode was lost, every call was answered, every create had its calc_reward and release in
that order, and no thread, process, file descriptor or asyncio task is left that wasn't there before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import fault_tools
import psutil

from toolrl.config.tool_policy import PolicyOptions
from toolrl.protocols import BuildContext
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools import as_toolset
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.truncate import token_cut
from toolrl.types import CallError, Episode, Message, ParsedTurn, Task, ToolCall
from toolrl_testing.fakes import FakeChatFormat, ScriptedEngine, make_task

TURNS = 4
ROUND = 500
CANCELLED_SHARE = 0.05
SHORT = {"timeout": 0.1, "max_output_tokens": 256}
POLICIES: dict[str, dict[str, Any]] = {
    "raises": {},
    "raises_in_thread": {"timeout": 5.0},
    "hangs": {},
    "stubborn": {},
    "hangs_in_thread": {},
    "large": {"timeout": 30.0},
    "wrong": {"retry": {"attempts": 2}},
    "flaps": {
        "retry": {"attempts": 4, "first_delay": 0.01, "max_delay": 0.1, "on_timeout": True},
        "breaker": {"failures": 4, "window": 10, "reset": 0.2},
    },
    "down": {"breaker": {"failures": 3, "reset": 0.3}},
    "crowded": {"concurrency": 2, "rate": {"per_second": 100, "burst": 5}, "queue_timeout": 0.3},
    "looked_up": {"cache": 16},
    "computes": {"timeout": 60.0},
    "dies": {"timeout": 0.5},
    "ledger": {"max_calls_per_episode": 3},
    "thread_ledger": {"max_calls_per_turn": 1},
}
WEIGHTS = {"dies": 0.03, "computes": 0.5, "large": 0.1, "hangs_in_thread": 0.3, "ledger": 2.0, "thread_ledger": 2.0}
"""How often a tool is called, relative to the others' 1: starting processes is what takes long."""


class Engine(ScriptedEngine):
    """Says calls of random tools, which only depend on the episode; remembers nothing."""

    def __init__(self) -> None:
        super().__init__([])
        self.generated = deque(maxlen=1)  # type: ignore[assignment]
        self.closed = deque(maxlen=1)  # type: ignore[assignment]

    def _next_text(self, prompt: Sequence[int], session: str) -> str:
        turn = self._answered[session]
        self._answered[session] += 1
        if turn >= TURNS:
            return "done"
        chance = random.Random(f"{session}/{turn}")
        return json.dumps([self._call(chance) for _ in range(chance.randint(1, 3))])

    def _call(self, chance: random.Random) -> Any:
        odd = chance.random()
        if odd < 0.03:
            return "torn"
        if odd < 0.06:
            return {"name": "no_such_tool", "arguments": {}}
        names = list(POLICIES)
        name = chance.choices(names, [WEIGHTS.get(it, 1.0) for it in names])[0]
        return {"name": name, "arguments": {} if odd < 0.08 else {"how": chance.randrange(1000)}}


class Parser:
    """A turn is a JSON list of calls; what isn't a mapping can't be read."""

    def stops(self, turn_text: str) -> Sequence[str]:
        return ()

    def parse(self, text: str, **context: Any) -> ParsedTurn:
        if not text.startswith("["):
            return ParsedTurn((), text)
        items = tuple(
            ToolCall(it["name"], it["arguments"]) if isinstance(it, dict) else CallError("malformed", "Can't be read.")
            for it in json.loads(text)
        )
        return ParsedTurn(items, "", status="calls")

    def render_results(self, records: Any) -> Sequence[Message]:
        return [Message("tool", record.result.text) for record in records]


class Census:
    """What came of the episodes."""

    def __init__(self) -> None:
        self.finished = 0
        self.failed: Counter[str] = Counter()
        self.calls = 0
        self.unanswered = 0
        self.answers: Counter[str] = Counter()

    def add(self, episode: Episode) -> None:
        self.finished += 1
        if episode.failure is not None:
            self.failed[episode.failure.message.splitlines()[0][:200]] += 1
            return
        said = sum(message.role == "tool" for message in episode.messages)
        items = sum(len(turn.items) for turn in episode.turns)
        answered = [record.result for record in episode.calls if isinstance(record.result.text, str)]
        self.calls += items
        self.unanswered += items - min(len(answered), said)
        self.answers.update(result.error or "ok" for result in answered)


def leftovers() -> dict[str, int]:
    """What this process has now."""
    this = psutil.Process()
    return {
        "threads": threading.active_count(),
        "processes": len(this.children()),
        "descriptors": this.num_fds(),
        "tasks": len(asyncio.all_tasks()),
    }


async def settled(before: dict[str, int], seconds: float = 30.0) -> dict[str, int]:
    """What is left above `before`, after what is on its way out had time to end."""
    end = time.monotonic() + seconds
    while True:
        left = {name: max(count - before[name], 0) for name, count in leftovers().items()}
        if not any(left.values()) or time.monotonic() > end:
            return left
        await asyncio.sleep(0.1)


def tool_box(ledgers: Sequence[fault_tools.Ledger]) -> ToolBox:
    """All tools, each under its policy."""
    by_name = {ledger.spec.name: ledger for ledger in ledgers if ledger.spec is not None}
    entries = []
    for name, policy in POLICIES.items():
        toolset = as_toolset(by_name.get(name) or getattr(fault_tools, name), None, BuildContext(name))
        entries.append(ToolEntry(name, toolset, policy=PolicyOptions.model_validate({**SHORT, **policy})))
    return ToolBox(entries, cut=token_cut(FakeChatFormat()), endpoints=Endpoints())


async def battery(episodes: int, seed: int) -> dict[str, Any]:
    """Run it; the figures."""
    before, begin = leftovers(), time.perf_counter()
    ledgers, census = [fault_tools.Ledger(), fault_tools.ThreadLedger()], Census()
    box = tool_box(ledgers)
    environment = Environment("default", Parser(), FakeChatFormat(), box, max_turns=TURNS + 1)
    runner = Runner(Engine(), {"default": environment}, seed=seed, max_error_rate=1.0, on_episode=census.add)
    limits = Limits(max_turn_tokens=2000, max_episode_tokens=60_000)
    await box.start()
    cancelled = 0
    for number, start in enumerate(range(0, episodes, ROUND)):
        size = min(ROUND, episodes - start)
        await runner.run(_tasks(size), 1, limits, round_id=f"r{number}")
        cancelled += await _cut_off(runner, limits, max(int(size * CANCELLED_SHARE), 1), f"c{number}")
    finished_anyway = max(census.finished - episodes, 0)
    await box.stop()
    left = await settled(before)
    stages: Counter[str] = sum((ledger.stages for ledger in ledgers), Counter())
    return {
        "episodes": episodes,
        "episodes_cancelled": cancelled - finished_anyway,
        "episodes_lost": max(episodes - census.finished, 0) + census.failed.total(),
        "failures": dict(census.failed.most_common(5)),
        "calls": census.calls,
        "calls_unanswered": census.unanswered,
        "answers": dict(census.answers.most_common()),
        "creates": stages["create"],
        "calc_rewards": stages["calc_reward"],
        "releases": stages["release"],
        "out_of_order": sum(ledger.out_of_order for ledger in ledgers),
        "leaked": left,
        "seconds": round(time.perf_counter() - begin, 1),
    }


async def _cut_off(runner: Runner, limits: Limits, size: int, name: str) -> int:
    """Cancel a round in the middle, as Ctrl-C does."""
    running = asyncio.create_task(runner.run(_tasks(size), 1, limits, round_id=name))
    await asyncio.sleep(random.Random(name).uniform(0.0, 0.4))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return size


def _tasks(size: int) -> list[Task]:
    return [make_task(id=f"t{number}") for number in range(size)]


def failed(result: dict[str, Any]) -> bool:
    """True where anything was lost, left or out of order."""
    return bool(
        result["episodes_lost"]
        or result["calls_unanswered"]
        or result["out_of_order"]
        or any(result["leaked"].values())
        or not result["creates"] == result["calc_rewards"] == result["releases"]
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000, help="episodes that are not cancelled")
    parser.add_argument("--seed", type=int, default=0, help="of the runner")
    parser.add_argument("--json", action="store_true", help="print on one line")
    arguments = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # Ten thousand tracebacks that are meant to be.
    result = asyncio.run(battery(arguments.episodes, arguments.seed))
    print(json.dumps(result, indent=None if arguments.json else 2))
    return int(failed(result))


if __name__ == "__main__":
    sys.exit(main())
