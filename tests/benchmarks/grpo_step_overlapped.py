"""The side of `grpo_step.py` that samples while it updates: the training loop with `max_staleness`.

A measurement runs the loop until samples come in as fast as they are used up, then times some steps in a row. The run
that it belongs to is far longer than that, so that sampling doesn't end early.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import grpo_step
from grpo_step import OurSide, Script, Times

from toolrl.config.load import check_config
from toolrl.loop.data import EndlessOrder
from toolrl.protocols import StepReport
from toolrl.rollouts.environment import Limits
from toolrl.types import Group
from toolrl_plugin_torch.loop.batches import DataPosition, Demand
from toolrl_plugin_torch.loop.overlap import OverlappingBatches
from toolrl_plugin_torch.loop.training import TrainingLoop

_STEPS = 1000
"""Of the run that is looked into."""


class _Watch:
    """The loop's events: notes when each step ended, and ends the loop after the last that is wanted."""

    def __init__(self, last: int) -> None:
        self._last = last
        self.loop: asyncio.Task[None] | None = None
        self.ends: dict[int, tuple[float, float]] = {}
        self.metrics: dict[int, dict[str, float]] = {}

    def step_end(self, report: StepReport) -> None:
        self.ends[report.step] = time.perf_counter(), time.process_time()
        self.metrics[report.step] = dict(report.metrics)
        if report.step == self._last and self.loop is not None:
            self.loop.cancel()


class _NothingSaved:
    """In the place of the loop's saver."""

    def scheduled(self) -> bool:
        return False

    def due(self, error: BaseException | None) -> bool:
        return False


class OverlappedSide(OurSide):
    """Steps of the training loop, several at once."""

    overlap = True

    def __init__(self, folder: Path, script: Script, output: Path, staleness: int, steps: int) -> None:
        super().__init__(folder, script, output)
        self._script = script
        self._staleness = staleness
        self._steps = steps
        self._measured = 0
        self._waiting: list[float] = []
        self._stale: list[float] = []

    def step(self) -> Times:
        """The mean over the timed steps: seconds that a step waited for samples, the rest of its time, and both."""
        first = self._trainer.step
        # What was started at once has been trained on then, and as much is in flight at the end as at the start.
        begin, end = first + self._staleness + 2, first + self._staleness + 2 + self._steps
        watch = _Watch(end)
        self._loop.run_until_complete(self._run(watch, first))
        timed = [watch.metrics[step] for step in range(begin + 1, end + 1)]
        self._check(timed)
        self._waiting += [metrics["groups/waiting"] for metrics in timed]
        self._stale += [metrics["staleness/mean"] for metrics in timed]
        seconds, cpu = (b - a for a, b in zip(watch.ends[begin], watch.ends[end], strict=True))
        waited = sum(metrics["time/rollout"] for metrics in timed)
        return Times(waited / self._steps, (seconds - waited) / self._steps, cpu / self._steps)

    async def _run(self, watch: _Watch, first: int) -> None:
        rows, size = grpo_step.PROMPTS, grpo_step.GROUP
        limits = Limits(max_turn_tokens=grpo_step.COMPLETION, max_episode_tokens=1000)
        order = EndlessOrder(self._tasks, seed=0, shuffle=False)
        self._runner.notify = self._look  # type: ignore[method-assign]
        supply = OverlappingBatches(
            self._runner, order, Demand(_STEPS, rows, size, limits), max_staleness=self._staleness
        )
        # Rows that no measurement before this one has begun: the script counts the turns of every episode.
        self._measured += 1
        supply.resume(first, DataPosition(self._measured * _STEPS * rows))
        config = {
            "model": {"path": "bench"},
            "environments": {"default": {}},
            "rollout": {"max_staleness": self._staleness},
            "trainer": {"steps": _STEPS, "prompts_per_step": rows},
            "algorithm": {"group_size": size},
        }
        loop = TrainingLoop(
            trainer=self._trainer,
            engine=self._engine,
            events=watch,  # type: ignore[arg-type]
            saver=_NothingSaved(),  # type: ignore[arg-type]
            config=check_config(config).config,
            batches=supply,
        )
        watch.loop = asyncio.create_task(loop.run())
        await asyncio.gather(watch.loop, return_exceptions=True)
        if not watch.loop.cancelled():
            watch.loop.result()

    def _look(self, groups: Any) -> None:
        """Every episode is what the script says."""
        taken: list[Group] = list(groups)
        for episode in (episode for group in taken for episode in group.episodes):
            prompt = int(episode.group.split("/")[1])
            sampled = [token for token, mine in zip(episode.ids, episode.loss_mask, strict=True) if mine]
            said = [token for turn in (0, 1) for token in self._script.turn(prompt, episode.index, turn)]
            assert sampled == said, f"{episode.id} isn't what the script says"

    def _check(self, timed: list[dict[str, float]]) -> None:
        for metrics in timed:
            assert metrics["episodes/trained"] == grpo_step.PROMPTS * grpo_step.GROUP
            assert metrics["staleness/max"] <= self._staleness

    def finish(self) -> dict[str, Any]:
        """End it: what else there is to say of it."""
        self.close()
        return {
            "max_staleness": self._staleness,
            "staleness_mean": statistics.mean(self._stale),
            "groups_waiting": statistics.mean(self._waiting),
        }
