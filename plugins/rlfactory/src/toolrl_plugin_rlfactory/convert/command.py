"""`toolrl rlfactory convert`: a toolrl config from a start script or a config of RLFactory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolrl_common.conversion import Conversion, ConvertCommand
from toolrl_plugin_rlfactory.convert.conversion import RLFactoryConversion
from toolrl_plugin_rlfactory.convert.environment import environment
from toolrl_plugin_verl.convert import mapping
from toolrl_plugin_verl.convert.command import read


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
    return mapping.convert(settings, lambda _: environment(settings))
