"""How the time of each part of a step grows with its size.

    python tests/benchmarks/bench_scale.py                 # prints times and slopes
    python tests/benchmarks/bench_scale.py --json OUT.json # writes them too

Each part is run at doubled or quadrupled sizes: episodes from 64 to 4,096, tokens from 128 to 4,096. A time is
processor time, the median of the rounds; the sizes go up in one round and down in the next. The slope is that of a line
through the logarithms of sizes and times: 1 is linear, 2 is quadratic. It is given over all sizes, and at its greatest
between neighbours. Small sizes have fixed costs in them, so that slopes below 1 are usual; what counts is that none is
above 1.1.

| part | grows with |
|---|---|
| rollout | episodes of five turns at once, with a scripted engine (`scripted.py`) |
| rollout, long turns | tokens sampled in an episode, 32 episodes at once |
| rollout, many turns | turns of an episode, 32 episodes at once |
| parsing | tokens of a turn with a call |
| recording | episodes written to a run folder, compressed at the end of the step |
| report | episodes of a run whose report is made |
| credit and batches | episodes, from their groups to micro-batches |
| update | trained tokens, in episodes of 128 trained tokens each: forward, backward, optimizer |
| update, long episodes | trained tokens of one episode: attention, which every token pays for all before it, is in it |

A rollout of many turns hands the engine one longer prompt each turn: the prompt is copied, a few bytes a token.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from scripted import Script, ScriptEngine, Work, add, make_environment, make_tasks, make_tokenizer, multiply_inline

from toolrl.config.algorithm import AlgorithmConfig
from toolrl.config.model import ModelConfig, TrainerConfig
from toolrl.protocols import StepReport
from toolrl.report.episodes import EpisodeStore
from toolrl.report.folder import RunFolder
from toolrl.report.html import write_report
from toolrl.report.recorder import RunRecorder
from toolrl.rollout.environment import Limits
from toolrl.rollout.runner import Runner
from toolrl.types import Group, RewardEntry
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_torch.batch import episode_sample
from toolrl_plugin_torch.objective.credit import credit
from toolrl_plugin_torch.policy import load_policy
from toolrl_plugin_torch.trainer import PolicyTrainer

TARGET = 1.1
EPISODES = (64, 256, 1024, 4096)
TOKENS = (128, 256, 512, 1024, 2048, 4096)
LIMITS = Limits(max_turn_tokens=100_000, max_episode_tokens=1_000_000)


@dataclass(frozen=True)
class Part:
    """What is timed. `prepare(size)` gives what to run, which is timed alone, and how large it really is."""

    name: str
    sizes: Sequence[int]
    prepare: Callable[[int], tuple[Callable[[], Any], int]]
    bound: bool = True
    """Whether the target holds for it."""


def rolled_out(work: Work, count: int, group: int = 8) -> list[Group]:
    """Episodes by the runner."""
    environment = make_environment(work, [add, multiply_inline])
    runner = Runner(ScriptEngine(Script(work, make_tokenizer())), {"default": environment}, concurrency=count)
    return asyncio.run(runner.run(make_tasks(count // group), group, LIMITS, round_id="round-0"))


def _rollout(work: Work, count: int) -> Callable[[], Any]:
    environment = make_environment(work, [add, multiply_inline])
    script = Script(work, make_tokenizer())

    def run() -> None:
        runner = Runner(ScriptEngine(script), {"default": environment}, concurrency=count)
        asyncio.run(runner.run(make_tasks(count // 8), 8, LIMITS, round_id="round-0"))

    return run


def rollout(size: int) -> tuple[Callable[[], Any], int]:
    return _rollout(Work(), size), size


def rollout_long_turns(size: int) -> tuple[Callable[[], Any], int]:
    # A turn has about a token a word, and some forty of its call.
    work = Work(turns=2, words=max(size // 2 - 20, 8), variants=4)
    sampled = sum(map(len, Script(work, make_tokenizer()).turns[0]))
    return _rollout(work, 32), sampled


def rollout_many_turns(size: int) -> tuple[Callable[[], Any], int]:
    return _rollout(Work(turns=size, variants=4), 32), size


def parsing(size: int) -> tuple[Callable[[], Any], int]:
    work = Work(words=size)
    text, parser = work.say(0, 0).text, HermesParser()
    repeats = 40_000 // size

    def run() -> None:
        for _ in range(repeats * 20):
            parser.parse(text, tools=())

    return _scaled(run, repeats), size


def _scaled(run: Callable[[], Any], repeats: int) -> Callable[[], Any]:
    run.repeats = repeats  # type: ignore[attr-defined]
    return run


def recording(size: int) -> tuple[Callable[[], Any], int]:
    episodes = [episode for group in rolled_out(Work(), size) for episode in group.episodes]

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = EpisodeStore(Path(folder))
            for episode in episodes:
                store.add(episode)
            store.close_step(0, "rollout")

    return run, size


def report(size: int) -> tuple[Callable[[], Any], int]:
    groups = rolled_out(Work(), size)
    directory = tempfile.mkdtemp(prefix="bench-scale-")
    folder = RunFolder.create(Path(directory) / "run", {}, total_steps=0)
    recorder = RunRecorder(folder)
    recorder.toolrl_run_start(folder)
    for group in groups:
        for episode in group.episodes:
            recorder.toolrl_episode_end(folder, episode)
    recorder.toolrl_step_end(folder, StepReport(0, "rollout", {"reward/mean": 1.0}))
    return (lambda: write_report(folder)), size


def _with_rewards(groups: Sequence[Group]) -> list[Group]:
    """Half of each group is right, so that there is something to learn."""
    from dataclasses import replace

    return [
        replace(
            group,
            episodes=tuple(
                replace(episode, rewards=(RewardEntry(None, "reward:bench", float(number % 2)),))
                for number, episode in enumerate(group.episodes)
            ),
        )
        for group in groups
    ]


class Trainers:
    """A trainer of a tiny model; a new one for each size, so that none has another's past."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        tokenizer = make_tokenizer()
        torch.manual_seed(0)
        config = transformers.Qwen3Config(
            vocab_size=4096, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=16384, tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
        )  # fmt: skip
        transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def make(self) -> PolicyTrainer:
        policy = load_policy(ModelConfig(path=str(self._folder)), str(self._folder), torch.device("cpu"))
        algorithm, trainer = AlgorithmConfig(preset="grpo"), TrainerConfig(steps=1000, learning_rate=1e-5)
        return PolicyTrainer(policy, trainer, algorithm, self._folder, temperature=1.0, longest=8192)

    def batches(self, size: int) -> tuple[Callable[[], Any], int]:
        groups = _with_rewards(rolled_out(Work(), size))
        trainer, algorithm = self.make(), AlgorithmConfig(preset="grpo")

        def run() -> None:
            credited = credit(groups, algorithm, None)
            pairs = zip(credited.episodes, credited.advantages, strict=True)
            samples = [episode_sample(episode, advantage) for episode, advantage in pairs]
            trainer._plan(samples, [episode.group for episode in credited.episodes])

        return run, size

    def update(self, size: int) -> tuple[Callable[[], Any], int]:
        groups = _with_rewards(rolled_out(Work(turns=2, words=44), size // 128, group=2))
        return self._updating(groups)

    def update_long(self, size: int) -> tuple[Callable[[], Any], int]:
        return self._updating(_with_rewards(rolled_out(Work(turns=2, words=max(size // 4 - 20, 8)), 2, group=2)))

    def _updating(self, groups: Sequence[Group]) -> tuple[Callable[[], Any], int]:
        trainer = self.make()
        trained = sum(episode.sampled_tokens for group in groups for episode in group.episodes)
        trainer.update(groups)
        return (lambda: trainer.update(groups)), trained


def timed(part: Part, rounds: int) -> dict[str, Any]:
    """Sizes, median seconds and slopes of a part."""
    ready = [part.prepare(size) for size in part.sizes]
    seconds: list[list[float]] = [[] for _ in ready]
    order = list(range(len(ready)))
    for _ in range(rounds):
        for place in order:
            run = ready[place][0]
            gc.collect()
            begin = time.process_time()
            run()
            seconds[place].append((time.process_time() - begin) / getattr(run, "repeats", 1))
        order.reverse()
    sizes, times = [size for _, size in ready], [statistics.median(seen) for seen in seconds]
    return {"sizes": sizes, "seconds": times, **slopes(sizes, times), "bound": part.bound}


def slopes(sizes: Sequence[int], times: Sequence[float]) -> dict[str, Any]:
    """Of the line through all logarithms (least squares), and between neighbours."""
    xs, ys = [math.log(size) for size in sizes], [math.log(max(it, 1e-9)) for it in times]
    slope = statistics.linear_regression(xs, ys).slope
    neighbours = [(y2 - y1) / (x2 - x1) for x1, x2, y1, y2 in zip(xs, xs[1:], ys, ys[1:], strict=False)]
    return {"slope": slope, "neighbours": neighbours, "steepest": max(neighbours)}


def parts(trainers: Trainers, quick: bool) -> list[Part]:
    episodes, tokens = (EPISODES[:3], TOKENS[:4]) if quick else (EPISODES, TOKENS)
    return [
        Part("rollout", episodes, rollout),
        Part("rollout, long turns", tokens, rollout_long_turns),
        Part("rollout, many turns", (2, 4, 8, 16, 32) if quick else (2, 4, 8, 16, 32, 64), rollout_many_turns),
        Part("parsing", tokens, parsing),
        Part("recording", episodes, recording),
        Part("report", episodes, report),
        Part("credit and batches", episodes, trainers.batches),
        Part("update", tokens[1:], trainers.update),
        Part("update, long episodes", tokens, trainers.update_long, bound=False),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and one round, for a look")
    parser.add_argument("--only", help="parts whose names begin with this")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.disable_progress_bar()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for part in parts(Trainers(Path(directory)), options.quick):
            if options.only and not part.name.startswith(options.only):
                continue
            figures = result[part.name] = timed(part, 1 if options.quick else options.rounds)
            pairs = zip(figures["sizes"], figures["seconds"], strict=True)
            shown = ", ".join(f"{size}: {seconds:.4f}" for size, seconds in pairs)
            print(f"{part.name:24} slope {figures['slope']:.2f}, steepest {figures['steepest']:.2f}   seconds {shown}")
            sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(any(figures["slope"] > TARGET for figures in result.values() if figures["bound"]))


if __name__ == "__main__":
    sys.exit(main())
