"""Tool `calc_gsm8k_reward`: the model submits an answer and reads its score, as often as it likes.

The number after the last `####` counts, else the last number of the submitted text.
The ground truth comes from the task's `tools_kwargs.calc_gsm8k_reward.create_kwargs.ground_truth`, which the data set
`gsm8k` fills in. A call whose answer is worth no more than the last one costs `penalty`; the last answer's worth is the
tool's own reward at the end.
"""

from __future__ import annotations

from typing import Any

from toolrl.errors import ToolsetError
from toolrl.protocols import BuildContext
from toolrl.tools import Tool
from toolrl.types import ToolResult, ToolSpec
from toolrl_plugin_math.options import RewardToolOptions
from toolrl_plugin_math.quantity import stated_number

NAME = "calc_gsm8k_reward"


class Gsm8kRewardTool(Tool):
    """One submitted answer an episode, which each call replaces."""

    inline = True
    spec = ToolSpec(
        NAME,
        "Checks an answer to the problem. The reward is 1.0 if the answer is correct, and 0.0 if it is not or if no "
        "number can be read from it.",
        {
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "The answer, a number in digits."}},
            "required": ["answer"],
        },
    )

    def __init__(self, options: RewardToolOptions | None, context: BuildContext | None = None) -> None:
        super().__init__(options or RewardToolOptions(), context)
        self._golds: dict[str, Any] = {}
        self._rewards: dict[str, float] = {}

    def create(self, instance_id: str, ground_truth: Any = None, **create_kwargs: Any) -> None:
        """Raises ToolsetError for a task without a ground truth that holds a number."""
        gold = None if ground_truth is None else stated_number(ground_truth)
        if gold is None:
            raise ToolsetError(
                f"the task gives {ground_truth!r:.80} as ground_truth, which holds no number",
                where=NAME,
                hint=f"Each task needs tools_kwargs: {{{NAME}: {{create_kwargs: {{ground_truth: …}}}}}}.",
            )
        self._golds[instance_id] = gold
        self._rewards[instance_id] = 0.0

    def execute(self, instance_id: str, parameters: Any, **execute_kwargs: Any) -> ToolResult:
        """The worth of an answer, and a step reward of −penalty where it is no better than the last."""
        answer = str(parameters.get("answer", ""))
        reward = float(stated_number(answer) == self._golds[instance_id])
        better = reward > self._rewards[instance_id]
        self._rewards[instance_id] = reward
        text = f"Current parsed answer={answer!r} reward={reward}"
        return ToolResult(text, reward=0.0 if better else -self.options.penalty)

    def calc_reward(self, instance_id: str, **calc_reward_kwargs: Any) -> float:
        """The worth of the last answer; 0.0 where there was none."""
        return self._rewards[instance_id]

    def release(self, instance_id: str, **release_kwargs: Any) -> None:
        """Forget the episode."""
        self._golds.pop(instance_id, None)
        self._rewards.pop(instance_id, None)
