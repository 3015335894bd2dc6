"""Stand-in for verl's `verl.tools.geo3k_tool`: `calc_geo3k_reward`."""

from __future__ import annotations

from typing import Any

from toolrl_plugin_verl.tools.schemas import function_schema
from toolrl_plugin_verl.tools.scoring_tool import ANSWER, ScoringTool
from toolrl_plugin_verl.utils.reward_score import geo3k


class Geo3kTool(ScoringTool):
    """Scores the model's answer to a geometry problem."""

    default_schema = function_schema(
        "calc_geo3k_reward",
        "A tool for calculating the reward of geo3k. (1.0 if parsed answer is correct, else 0.0)",
        answer=ANSWER,
    )

    def grade(self, answer: str, ground_truth: Any) -> float:
        return geo3k.compute_score(answer, ground_truth, use_boxed=False, format_score=0.0)
