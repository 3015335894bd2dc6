"""`toolrl areal convert`: a toolrl config from a config or a start script of AReaL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, ConvertCommand, Reading, merged, read_script, read_text
from toolrl_plugin_areal.convert.mapping import convert
from toolrl_plugin_areal.convert.settings import ArealConversion

_HINT = "Give the YAML of AReaL's TIR example, or its start script."


class ArealConvert(ConvertCommand):
    """The command."""

    system = "areal"
    config_help = "the YAML of AReaL's TIR example, or a shell script that starts it"
    overrides_help = "overrides over it, such as gconfig.n_samples=8"

    def convert(self, config: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Conversion]:
        """Read and convert."""
        return convert(ArealConversion(read(config, overrides)))


def read(path: str, overrides: Sequence[str]) -> Reading:
    """Read a YAML, or the one that a start script names, with overrides. Raises ConfigError."""
    text = read_text(path, _HINT)
    if Path(path).suffix not in (".yaml", ".yml"):
        path, words = _start_command(text, path)
        text, overrides = read_text(path, _HINT), [*words, *overrides]
    reading = Reading(Path(path).parent)
    reading.tree = reading.read_yaml(path, text)
    reading.override(overrides)
    tree = reading.tree
    if isinstance(tree.get("tir_config"), dict):
        tree["tir"] = merged(tree["tir"] if isinstance(tree.get("tir"), dict) else {}, tree.pop("tir_config"))
    return reading


def _start_command(text: str, script: str) -> tuple[str, list[str]]:
    """Find the config file that the first command with `--config` names, and the overrides behind it. Raises
    ConfigError."""
    for command in read_script(text, script):
        words = iter(command)
        for word in words:
            option, equals, name = word.partition("=")
            if option == "--config":
                name = name if equals else next(words, "")
                return _found(name, script), [word for word in words if "=" in word]
    raise ConfigError(
        "no command here starts AReaL with `--config FILE`",
        where=script,
        hint="Give the script that runs `python3 … train_tir.py --config FILE …`, or that YAML.",
    )


def _found(name: str, script: str) -> str:
    """Find the file from here or beside the script, which may be started from elsewhere."""
    beside = Path(script).parent
    for path in (Path(name), beside / name, beside / Path(name).name):
        if path.is_file():
            return str(path)
    raise ConfigError(
        f"its command names `--config {name}`, and there is no such file here",
        where=script,
        hint="Run this in the folder that the script is started in, or give that YAML.",
    )
