"""`toolrl areal convert`: a toolrl config from a config or start script of AReaL's TIR example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolrl_common.conversion import Conversion, ConvertCommand
from toolrl_plugin_areal.convert.conversion import ArealConversion, read
from toolrl_plugin_areal.convert.mapping import convert


class ArealConvert(ConvertCommand):
    """The command."""

    system = "areal"
    config_help = "the YAML of AReaL's TIR example, or a shell script that starts it"
    overrides_help = "overrides over it, such as gconfig.n_samples=8"

    def convert(self, config: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Conversion]:
        """Read and convert."""
        return convert(ArealConversion(read(config, overrides)))
