r"""Tool `calc_geo3k_reward`: the model submits an answer and gets its worth, as often as it likes.

The ground truth comes from the task's `tools_kwargs.calc_geo3k_reward.create_kwargs.ground_truth`, which the data set
`geo3k` fills in. A call whose answer is worth no more than the last one costs `penalty`; the last answer's worth is the
tool's own reward at the end.
"""

from __future__ import annotations

from typing import Any

from toolrl.errors import ToolsetError
from toolrl.protocols import BuildContext
from toolrl.tools import Tool
from toolrl.types import ToolResult, ToolSpec
from toolrl_plugin_geo3k.judge import GeometryJudge
from toolrl_plugin_geo3k.options import Geo3kToolOptions
from toolrl_plugin_math.units import BOXED, bare

NAME = "calc_geo3k_reward"


class GeometryTool(Tool):
    """One submitted answer an episode, which each call replaces."""

    spec = ToolSpec(
        NAME,
        "Checks an answer to the geometry problem. The reward is 1.0 if it is correct, else 0.0.",
        {
            "type": "object",
            "properties": {
                "answer": {"type": "string", "description": "The answer to the question, enclosed in \\boxed{}."}
            },
            "required": ["answer"],
        },
    )

    def __init__(self, options: Geo3kToolOptions | None, context: BuildContext | None = None) -> None:
        super().__init__(options or Geo3kToolOptions(), context)
        self._judge = GeometryJudge(self.options.workers, self.options.timeout)
        self._golds: dict[str, str] = {}
        self._rewards: dict[str, float] = {}

    async def create(self, instance_id: str, ground_truth: Any = None, **create_kwargs: Any) -> None:
        """Raises ToolsetError for a task without a ground truth."""
        gold = "" if ground_truth is None else str(ground_truth)
        if not bare(gold):
            raise ToolsetError(
                f"the task gives {ground_truth!r:.80} as ground_truth, which holds no answer",
                where=NAME,
                hint=f"Each task needs tools_kwargs: {{{NAME}: {{create_kwargs: {{ground_truth: …}}}}}}.",
            )
        self._golds[instance_id] = gold
        self._rewards[instance_id] = 0.0

    async def execute(self, instance_id: str, parameters: Any, **execute_kwargs: Any) -> ToolResult:
        """The worth of an answer, and a step reward of −penalty where it is no better than the last."""
        answer = str(parameters.get("answer", ""))
        boxed = BOXED.find(answer)
        reward = float(await self._judge.right(answer, self._golds[instance_id]))
        better = reward > self._rewards[instance_id]
        self._rewards[instance_id] = reward
        text = f"Current parsed answer={boxed if boxed is not None else answer!r} reward={reward}"
        return ToolResult(text, reward=0.0 if better else -self.options.penalty)

    async def calc_reward(self, instance_id: str, **calc_reward_kwargs: Any) -> float:
        """The worth of the last answer; 0.0 where there was none."""
        return self._rewards[instance_id]

    async def release(self, instance_id: str, **release_kwargs: Any) -> None:
        """Forget the episode."""
        self._golds.pop(instance_id, None)
        self._rewards.pop(instance_id, None)
