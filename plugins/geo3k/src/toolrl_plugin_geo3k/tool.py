r"""Tool `calc_geo3k_reward`: the model submits an answer and gets its worth, as often as it likes."""

from __future__ import annotations

from typing import Any

from toolrl.protocols import BuildContext
from toolrl_plugin_geo3k.judge import BOXED, GeometryJudge, bare
from toolrl_plugin_geo3k.options import Geo3kToolOptions
from toolrl_plugin_math.reward_tool import AnswerTool, answer_spec

NAME = "calc_geo3k_reward"


class GeometryTool(AnswerTool):
    """What stands in the last box counts, else the whole submitted text."""

    spec = answer_spec(
        NAME,
        "Checks an answer to the geometry problem. The reward is 1.0 if it is correct, else 0.0.",
        "The answer to the question, enclosed in \\boxed{}.",
    )

    def __init__(self, options: Geo3kToolOptions | None, context: BuildContext | None = None) -> None:
        super().__init__(options or Geo3kToolOptions(), context)
        self._judge = GeometryJudge(self.options.workers, self.options.timeout)

    def gold(self, ground_truth: Any) -> Any:
        return str(ground_truth) if bare(str(ground_truth)) else None

    async def is_right(self, answer: str, gold: Any) -> bool:
        return await self._judge.right(answer, gold)

    def shown(self, answer: str) -> str:
        boxed = BOXED.find(answer)
        return boxed if boxed is not None else answer
