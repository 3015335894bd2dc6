"""`toolrl rlfactory convert`: a toolrl config from a start script or a config of RLFactory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolrl_common.conversion import Conversion, ConvertCommand
from toolrl_plugin_rlfactory.convert.conversion import RLFactoryConversion, read
from toolrl_plugin_rlfactory.convert.mapping import convert


class Convert(ConvertCommand):
    """The command."""

    system = "rlfactory"
    config_help = "main_grpo.sh or another script that starts verl.trainer.main_ppo, or a YAML"
    overrides_help = "overrides over it, such as actor_rollout_ref.rollout.n=8"

    def convert(self, config: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Conversion]:
        """Read and convert."""
        return convert(RLFactoryConversion(read(config, overrides)))
