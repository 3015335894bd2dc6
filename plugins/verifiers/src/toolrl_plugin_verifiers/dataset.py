"""The data set `verifiers`: the rows of an environment as tasks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from toolrl.chat.conversation import read_messages
from toolrl.errors import ConfigError, DataError
from toolrl.protocols import BuildContext
from toolrl.types import Task
from toolrl_plugin_verifiers.options import DataOptions

EXTRA = "verifiers"
"""The key of `Task.extra` under which the harness finds `id` and `args` of the environment, and the `row`."""


class Examples:
    """The rows of one split."""

    def __init__(self, options: DataOptions, context: BuildContext) -> None:
        """Raises ConfigError where the environment can't be loaded, DataError where its rows can't."""
        self._options = options
        environment = load(options.id, options.args, context.where)
        train = options.split == "train"
        try:
            rows = environment.build_dataset() if train else environment.build_eval_dataset()
        except Exception as error:
            told = f"the rows of the environment {options.id!r} can't be loaded: {type(error).__name__}: {error}"
            raise DataError(told, where=context.where) from error
        if rows is None:
            problem = f"the environment {options.id!r} has no {options.split} split"
            raise DataError(
                problem, where=context.where, hint="Take the other, of which `skip` and `limit` give parts."
            )
        last = len(rows) if options.limit is None else min(len(rows), options.skip + options.limit)
        self._rows, self._indices = rows, range(options.skip, last)
        if not self._indices:
            raise DataError(f"{options.id!r} has {len(rows)} rows: none is left", where=context.where)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Task:
        """Raises DataError for a prompt that holds what toolrl can't show."""
        number, options = self._indices[index], self._options
        row = dict(self._rows[number])
        try:
            messages = read_messages(row["prompt"], "prompt")
        except DataError as error:
            raise DataError(f"row {number} of {options.id!r}: {error.message}", hint=error.hint) from None
        return Task(
            id=f"{options.id}-{options.split}-{number}",
            messages=messages,
            answer=row.get("answer"),
            environment=options.environment,
            extra={EXTRA: {"id": options.id, "args": options.args, "row": row}},
        )


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
