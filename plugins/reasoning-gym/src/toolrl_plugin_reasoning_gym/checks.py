"""Whether the library has the generators that a config names, with these settings."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from toolrl.errors import ConfigError
from toolrl_common.workers import WorkerError
from toolrl_plugin_reasoning_gym.process import generators, list_generators

if TYPE_CHECKING:
    from toolrl_plugin_reasoning_gym.options import DataOptions, GeneratorOptions

SEED_DISTANCE = 2**20
"""As many as a data set can have tasks."""


def library_config(spec: GeneratorOptions, seed: int, size: int) -> dict[str, Any]:
    """The settings that the library's generator gets. It seeds task i by seed + i, so neighbouring seeds would give the
    same tasks, shifted by one: ours lie as far apart as a data set can be long."""
    return {"seed": seed * SEED_DISTANCE, **spec.config, "size": max(size, 1)}


def check_generators(options: DataOptions, where: str | None = None) -> None:
    """Raises ConfigError with each generator that the library doesn't have or that refuses its settings."""
    known = {item["name"]: item["config"] for item in list_generators(where)}
    found = [_problem(spec, known) for spec in options.generators]
    if problems := [f"generators[{number}]: {problem}" for number, problem in enumerate(found) if problem]:
        raise ConfigError(problems, where=where, hint="toolrl reasoning-gym list shows generators and settings.")


def _problem(spec: GeneratorOptions, known: dict[str, dict[str, Any]]) -> str | None:
    if spec.name not in known:
        return f"reasoning_gym has no generator {spec.name!r}{_nearest(spec.name, known)}"
    for key in spec.config:
        if key != "seed" and key not in known[spec.name]:
            settings = ", ".join(known[spec.name]) or "none"
            return f"{spec.name} has no setting {key!r}{_nearest(key, known[spec.name])}; it has: {settings}"
    try:
        generators().ask(do="opened", generator=spec.name, config=library_config(spec, 0, 1))
    except WorkerError as error:
        return f"{spec.name} refuses its settings: {error}"
    return None


def _nearest(name: str, known: Any) -> str:
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
