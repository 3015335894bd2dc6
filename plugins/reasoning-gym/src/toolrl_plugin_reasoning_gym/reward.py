"""Reward `reasoning_gym`: what the task's own generator scores the answer with, from 0 to 1.

The scorer runs in a worker process, the answer in a fork of it behind walls: see `guard.py`. An answer that breaks the
scorer, or takes too long, is worth 0 and shows up in a metric. Where the scoring itself doesn't work the episode fails.
"""

from __future__ import annotations

from typing import Literal

from toolrl.parsing.flags import EndFlags
from toolrl.protocols import BuildContext
from toolrl.types import Episode, Score
from toolrl_common.workers import WorkerThreads
from toolrl_plugin_reasoning_gym.carried import carried_by
from toolrl_plugin_reasoning_gym.options import ReasoningGymRewardOptions
from toolrl_plugin_reasoning_gym.process import require_library, score, worker

FAILURES = ("timeout", "refused", "raised", "died")
_WALL_FACTOR = 6
"""Seconds by the clock for each of processor time: the machine is busy."""
_TOLERANCE = 1e-9
Form = Literal["tag", "boxed", "text"]
_FLAGS = {"tag": EndFlags(("answer",)), "boxed": EndFlags(("boxed",))}


class ReasoningGymReward:
    """Scores tasks of the data set `reasoning_gym`."""

    def __init__(self, options: ReasoningGymRewardOptions | None, context: BuildContext) -> None:
        """Raises ConfigError where the library isn't there."""
        require_library(context.where or None)
        self._options = options or ReasoningGymRewardOptions()
        self._workers = WorkerThreads(self._options.workers, lambda: worker("--score"), name="reasoning-gym")

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for a task of another data set, and where answers can't be scored."""
        options, carried = self._options, carried_by(episode.task)
        text = episode.content_of(options.judge)
        answer = answer_in(text, "text" if options.judge == "answer" else options.form)
        failures = dict.fromkeys(FAILURES, 0.0)
        if answer is None:
            return self._result(carried["generator"], 0.0, answered=0.0, **failures)
        limits = {"seconds": options.timeout, "wall_seconds": float(options.timeout * _WALL_FACTOR)}
        request = {**carried, "answer": answer, **limits, "memory_mb": options.memory_mb}
        reply = await self._workers.run(lambda process: score(process, request))
        if "failed" in reply:
            failures[reply["failed"]] = 1.0
        return self._result(carried["generator"], float(reply.get("score", 0.0)), answered=1.0, **failures)

    def _result(self, generator: str, value: float, **metrics: float) -> Score:
        correct = float(value >= 1.0 - _TOLERANCE)
        return Score(
            value if self._options.partial else correct,
            metrics={"correct": correct, f"score/{generator}": value, **metrics},
        )

    def close(self) -> None:
        """End the worker processes; without it they end with this object."""
        self._workers.close()


def answer_in(text: str, form: Form) -> str | None:
    """The answer, without white space around it; None where there is none, or an empty one."""
    found = text if form == "text" else _FLAGS[form].find(text)
    return (found or "").strip() or None


def check() -> str:
    """For `toolrl doctor`: scores one answer in a worker."""
    require_library()
    process = worker("--score")
    try:
        task = {"generator": "chain_sum", "config": {"seed": 0, "size": 1}, "index": 0}
        answer = process.ask({"do": "entry", **task}, 60.0)["answer"]
        request = {"do": "score", **task, "answer": answer}
        reply = process.ask({**request, "seconds": 10, "wall_seconds": 60.0, "memory_mb": 512}, 120.0)
    finally:
        process.close()
    if reply.get("score") != 1.0:
        raise RuntimeError(f"a right answer was scored {reply}")
    return "chain_sum scores its own answer 1"
