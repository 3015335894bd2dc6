"""RLFactory's settings: those of verl, of which it is a fork, with defaults and an environment of its own."""

from __future__ import annotations

from typing import ClassVar

from toolrl_plugin_verl.convert.command import VerlConversion

_REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("reward_rollout.",), "there is no reward model; score by rules, or write a reward that asks one"),
    (("actor_rollout_ref.env.max_size", "actor_rollout_ref.env.cache", "actor_rollout_ref.env.persist",
      "actor_rollout_ref.env.eviction", "actor_rollout_ref.env.use_storage_manager",
      "actor_rollout_ref.env.storage"),
     "RLFactory's store of tools' answers; `policy.cache` keeps those of tools that are `pure`"),
    (("actor_rollout_ref.env.parallel_sse_tool_call",), "the toolset mcp has `instances` for that"),
    (("actor_rollout_ref.env.use_simulated_user_feedback",), "a simulated user: write it as a toolset with `respond`"),
    (("reward_model.",), "the reward `rlfactory` scores, in threads; there is no reward model"),
    (("trainer.use_process_reward",), "`actor_rollout_ref.env.use_process_reward` is read instead"),
)  # fmt: skip


class RLFactoryConversion(VerlConversion):
    """A conversion of RLFactory's settings."""

    system, reasons = "RLFactory", (*_REASONS, *VerlConversion.reasons)
    defaults: ClassVar = {
        **VerlConversion.defaults,
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": 128,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "trainer.experiment_name": "run",
        "trainer.total_epochs": 1,
    }
