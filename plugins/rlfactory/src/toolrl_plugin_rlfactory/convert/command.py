"""`toolrl rlfactory convert`: a toolrl config from a start script or a config of RLFactory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from toolrl_common.conversion import Conversion, ConvertCommand
from toolrl_plugin_rlfactory.convert.environment import environment
from toolrl_plugin_verl.convert import mapping
from toolrl_plugin_verl.convert.command import VerlConversion, read

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


class RLFactoryConvert(ConvertCommand):
    """The command."""

    system = "rlfactory"
    config_help = "main_grpo.sh or another script that starts verl.trainer.main_ppo, or a YAML"
    overrides_help = "overrides over it, such as actor_rollout_ref.rollout.n=8"

    def convert(self, config: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Conversion]:
        """Read and convert."""
        return convert(RLFactoryConversion(read(config, overrides)))


def convert(settings: RLFactoryConversion) -> tuple[dict[str, Any], Conversion]:
    """The config, and the conversion with its notes. All but the environment is verl's."""
    if not settings.given("actor_rollout_ref.rollout.top_p"):
        settings.remark(
            "rollout.top_p: left out, to train on the distribution that is sampled; RLFactory's default is 0.95"
        )
    if settings.get("actor_rollout_ref.actor.state_masking") is False:
        settings.lose("actor_rollout_ref.actor.state_masking", "what tools write is never trained on")
    return mapping.convert(settings, environment)
