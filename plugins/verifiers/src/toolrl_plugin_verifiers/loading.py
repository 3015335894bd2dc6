"""Loads environments of verifiers, each once a process."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from toolrl.errors import ConfigError

_loaded: dict[str, Any] = {}


def load(name: str, args: Mapping[str, Any], where: str | None) -> Any:
    """The `verifiers.Environment` of this name and these arguments. Raises ConfigError where it can't be loaded, or
    needs what toolrl doesn't give."""
    key = json.dumps([name, args], sort_keys=True, default=repr)
    if key not in _loaded:
        _loaded[key] = _load(name, args, where)
    return _loaded[key]


def _load(name: str, args: Mapping[str, Any], where: str | None) -> Any:
    import verifiers as vf

    if not hasattr(vf, "load_environment"):
        hint = "pip install 'verifiers>=0.3,<0.4'; docs/howto/verifiers.md shows how environments of 0.4 are played."
        raise ConfigError(f"verifiers {vf.__version__} has no load_environment(name)", where=where, hint=hint)
    # An Environment takes over SIGINT and SIGTERM, with which toolrl ends a run in order.
    with patch.object(sys.modules[vf.Environment.__module__], "signal"):
        try:
            environment = vf.load_environment(name, **args)
        except Exception as error:
            cause = error.__cause__ or error
            told = f"{type(cause).__name__}: {str(cause).strip()}"
            hint = "Environments are Python packages: `prime env install OWNER/NAME`, or pip install it."
            raise ConfigError(f"the environment {name!r} can't be loaded: {told}", where=where, hint=hint) from error
    if environment.requires_group_rollouts:
        raise ConfigError(
            f"the rubric of {name!r} compares the rollouts of a group, and toolrl has each scored when it ends",
            where=where,
            hint="Rewards that compare episodes are written as a reward function with `score_group`.",
        )
    return environment
