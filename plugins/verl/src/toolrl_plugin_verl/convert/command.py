"""`toolrl verl convert`: a toolrl config from a config or a start script of verl."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, ConvertCommand, Reading, has_branches, merged, read_script, read_text
from toolrl_plugin_verl.convert.mapping import convert
from toolrl_plugin_verl.convert.tables import DEFAULTS, REASONS

_BASES = ("ppo_trainer", "ppo_megatron_trainer", "ppo_veomni_trainer", "_generated_ppo_trainer")
"""verl's own configs, whose defaults the table has."""
_DEEPEST = 8
_TRAINER = re.compile(r"(?:^|[./])main_(?:ppo|dapo|grpo)(?:\.py)?\Z")
_LONG = {"--config": "--config-name", "-cn": "--config-name", "-cp": "--config-path", "-cd": "--config-path",
         "--config-dir": "--config-path"}  # fmt: skip
_PRINT = "print the whole config by `python -m verl.trainer.main_ppo … --cfg job --resolve`, and convert that"


class VerlConversion(Conversion):
    """verl's settings."""

    system, defaults, reasons = "verl", DEFAULTS, REASONS


class VerlConvert(ConvertCommand):
    """The command."""

    system = "verl"
    config_help = "verl's YAML, or a shell script that starts verl.trainer.main_ppo"
    overrides_help = "verl's overrides over it, such as actor_rollout_ref.rollout.n=8"

    def convert(self, config: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Conversion]:
        """Read and convert."""
        return convert(VerlConversion(read(config, overrides)))


def read(path: str, overrides: Sequence[str]) -> Reading:
    """What a YAML or a start script holds, with further overrides. Raises ConfigError."""
    text, reading = read_text(path, "Give verl's YAML or a start script."), Reading(Path(path).parent)
    if Path(path).suffix in (".yaml", ".yml"):
        reading.tree = _composed(path, text, reading)
        if isinstance(reading.tree.get("tools"), list) and len(reading.tree) == 1:
            raise ConfigError(
                f"{path!r} is a tool YAML, which toolrl reads as it is",
                hint="Name it in a config: `tools: [{use: verl, options: {tool_config_path: …}}]`; or convert the "
                "config or script that names it.",
            )
    else:
        _take_script(path, text, reading)
    _take_arguments(overrides, reading)
    return reading


def _take_script(path: str, text: str, reading: Reading) -> None:
    """The first command that starts verl's trainer."""
    started = [
        (command, place)
        for command in read_script(text, path)
        for place, word in enumerate(command)
        if _TRAINER.search(word)
    ]
    if not started:
        raise ConfigError(
            "no command here starts verl's trainer: nothing calls main_ppo",
            where=path,
            hint="Give the script that runs `python3 -m verl.trainer.main_ppo …`, or verl's YAML.",
        )
    command, place = started[0]
    if len(started) > 1:
        reading.problems.append(
            (path, f"{len(started) - 1} further commands start the trainer; only the first is read")
        )
    if has_branches(text):
        reading.problems.append(
            (path, "conditions and loops aren't followed: each body is read as if it ran once, the last one counts")
        )
    # There is no main_grpo in verl; guides that name it mean GRPO.
    implied = ["algorithm.adv_estimator=grpo"] if "main_grpo" in command[place] else []
    _take_arguments([*implied, *filter(None, command[place + 1 :])], reading)


def _take_arguments(arguments: Sequence[str], reading: Reading) -> None:
    """Arguments of main_ppo: the config that they name first, then overrides in order."""
    named, overrides, waiting = {"--config-path": "", "--config-name": ""}, [], ""
    for word in arguments:
        flag, equals, value = word.partition("=")
        flag = _LONG.get(flag, flag)
        if waiting:
            named[waiting], waiting = word, ""
        elif flag in named and equals:
            named[flag] = value
        elif flag in named:
            waiting = flag
        elif not word.startswith("-"):
            overrides.append(word)
    if named["--config-name"] and named["--config-name"].removesuffix(".yaml") not in _BASES:
        _take_named(named["--config-path"], named["--config-name"], reading)
    reading.override(overrides)


def _take_named(folder: str, name: str, reading: Reading) -> None:
    """The config of `--config-path` and `--config-name`, under what is read already."""
    file = Path(folder or ".") / (name if name.endswith(".yaml") else f"{name}.yaml")
    found = next((path for path in (file, reading.folder / file, reading.folder / file.name) if path.is_file()), None)
    if found is None:
        why = f"there is no {str(file)!r}, so what it sets is missing; run this where the script runs, or {_PRINT}"
        reading.problems.append((f"--config-name={name}", why))
    else:
        reading.tree = merged(_composed(str(found), found.read_text(encoding="utf-8"), reading), reading.tree)


def _composed(path: str, text: str, reading: Reading, depth: int = 0) -> dict[str, Any]:
    """A YAML with those that its `defaults:` names beside it. Of verl's own the table has what matters."""
    own = reading.read_yaml(path, text)
    own.pop("hydra", None)
    names = own.pop("defaults", None)
    names = names if isinstance(names, list) else []
    tree: dict[str, Any] = {}
    for name in names if "_self_" in names else [*names, "_self_"]:
        beside = Path(path).parent / f"{name}.yaml"
        if name == "_self_":
            tree = merged(tree, own)
        elif name in _BASES:
            continue
        elif beside.is_file() and depth < _DEEPEST:
            tree = merged(tree, _composed(str(beside), beside.read_text(encoding="utf-8"), reading, depth + 1))
        else:
            reading.problems.append((f"defaults: {name}", f"what it sets is missing; {_PRINT}"))
    return tree
