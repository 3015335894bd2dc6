"""Reads the start command of a shell script without running it: `python3 … train_tir.py --config FILE key=value …`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from toolrl.errors import ConfigError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^${}]*))?\}|([A-Za-z_]\w*))")
_END = re.compile(r"[|&;<]|\d?>")
_LONGEST = 10_000


def start_command(text: str, script: str) -> tuple[str, list[str]]:
    """The config file that the first command with `--config` names, and the overrides behind it. Raises ConfigError."""
    values: dict[str, str] = {}
    for line in text.replace("\r\n", "\n").replace("\\\n", " ").splitlines():
        try:
            words = [_filled(word, values)[:_LONGEST] for word in shlex.split(line, comments=True)]
        except ValueError:
            continue  # Part of a text over several lines.
        assigned = [_ASSIGNMENT.match(word) for word in words if word != "export"]
        if all(assigned):
            values.update(match.groups() for match in assigned if match)
            continue
        words = words[: next((place for place, word in enumerate(words) if _END.match(word)), len(words))]
        at = next((place for place, word in enumerate(words) if word.split("=")[0] == "--config"), None)
        if at is not None:
            _, equals, name = words[at].partition("=")
            name, rest = (name, words[at + 1 :]) if equals else ("".join(words[at + 1 : at + 2]), words[at + 2 :])
            return _found(name, script), [word for word in rest if "=" in word]
    raise ConfigError(
        "no command here starts AReaL with `--config FILE`",
        where=script,
        hint="Give the script that runs `python3 … train_tir.py --config FILE …`, or that YAML.",
    )


def _filled(word: str, values: dict[str, str]) -> str:
    return _VARIABLE.sub(
        lambda match: values.get(match[1] or match[3], match[2] or f"${{{match[1] or match[3]}}}"), word
    )


def _found(name: str, script: str) -> str:
    """The file, from here or beside the script, which may be started from elsewhere."""
    beside = Path(script).parent
    for path in (Path(name), beside / name, beside / Path(name).name):
        if path.is_file():
            return str(path)
    raise ConfigError(
        f"its command names `--config {name}`, and there is no such file here",
        where=script,
        hint="Run this in the folder that the script is started in, or give that YAML.",
    )
