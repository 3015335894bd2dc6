"""Stand-ins for the scorers of `verl.utils.reward_score` that tools and rewards call."""

from toolrl_plugin_verl.utils.reward_score import geo3k, gsm8k, math_dapo, math_reward
from toolrl_plugin_verl.utils.reward_score.default import default_compute_score

__all__ = ["default_compute_score", "geo3k", "gsm8k", "math_dapo", "math_reward"]
