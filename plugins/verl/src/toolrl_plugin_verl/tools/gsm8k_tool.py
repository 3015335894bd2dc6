"""Stand-in for verl's `verl.tools.gsm8k_tool`: `calc_gsm8k_reward`."""

from __future__ import annotations

from typing import Any

from toolrl_plugin_verl.tools.schemas import function_schema
from toolrl_plugin_verl.tools.scoring_tool import ANSWER, ScoringTool
from toolrl_plugin_verl.utils.reward_score import gsm8k


class Gsm8kTool(ScoringTool):
    """Scores the model's answer to a grade-school problem."""

    default_schema = function_schema(
        "calc_gsm8k_reward",
        "A tool for calculating the reward of gsm8k. (1.0 if parsed answer is correct, else 0.0)",
        answer=ANSWER,
    )

    def grade(self, answer: str, ground_truth: Any) -> float:
        text = answer if answer.startswith("####") else f"#### {answer}"
        return gsm8k.compute_score(text, ground_truth, method="flexible")
