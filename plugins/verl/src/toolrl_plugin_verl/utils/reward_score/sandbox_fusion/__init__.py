"""Stand-ins for `verl.utils.reward_score.sandbox_fusion`."""
