"""`toolrl config show --tools`: the tools of each environment as the model gets them."""

from __future__ import annotations

import asyncio
import random
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolrl.building import build_component
from toolrl.config.model import EnvironmentConfig
from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ConfigError, ToolrlError
from toolrl.preflight import build_datasets, run_directory
from toolrl.protocols import BuildContext, EpisodeContext, iterate
from toolrl.rollouts.environment import pick_environment
from toolrl.tools.tool_session import ToolEntry
from toolrl.tools.toolbox import ToolBox
from toolrl.types import Markers, Task

if TYPE_CHECKING:
    from toolrl.config.load import LoadedConfig
    from toolrl.plugins.registry import Registry

LOOKED_AT = 1000
"""Tasks of a data set that are read to find one of each environment."""


def tool_schemas(loaded: LoadedConfig, registry: Registry) -> dict[str, list[dict[str, Any]]]:
    """Tools by environment, in the form that chat templates and APIs take. Starts the tools and opens an episode of
    the environment's first task, because tools may differ from task to task.

    Raises ConfigError with the tools that can't be built or started.
    """
    directory = run_directory(loaded.config).absolute()
    first = _first_tasks(loaded, registry, directory)
    found: dict[str, list[dict[str, Any]]] = {}
    problems = []
    for name, environment in loaded.config.environments.items():
        task = first.get(name, Task("show", ()))
        try:
            box = _tool_box(registry, name, environment, directory)
            found[name] = asyncio.run(_shown(box, task))
        except ToolrlError as error:
            where = error.where if error.where and error.where.startswith("environments.") else f"environments.{name}"
            problems.append(f"{where}: {error.message}" + (f"; {error.hint}" if error.hint else ""))
    if problems:
        raise ConfigError(problems, where=loaded.source)
    return found


def _tool_box(registry: Registry, name: str, config: EnvironmentConfig, directory: Path) -> ToolBox:
    entries = []
    for index, use in enumerate(config.tools):
        where = f"environments.{name}.tools[{index}]"
        context = BuildContext(name=use.use, where=where, run_dir=directory)
        entries.append(
            ToolEntry(
                name=use.use,
                toolset=build_component(registry, "tools", use, context, where),
                rename=use.rename,
                policy=PolicyOptions(**use.policy),
                markers={tool: Markers(tuple(it.start), tuple(it.end)) for tool, it in use.markers.items()},
            )
        )
    return ToolBox(entries)


async def _shown(box: ToolBox, task: Task) -> list[dict[str, Any]]:
    await box.start()
    try:
        async with box.open(task, EpisodeContext(f"{task.id}#0", task, random.Random(0))) as session:
            return [spec.as_function() for spec in session.specs()]
    finally:
        await box.stop()


def _first_tasks(loaded: LoadedConfig, registry: Registry, directory: Path) -> dict[str, Task]:
    """The first task of each environment; a data set that can't be read is noted."""
    config, names = loaded.config, {name: name for name in loaded.config.environments}
    found: dict[str, Task] = {}
    for where in ("data.train", "data.eval"):
        try:
            source = build_datasets(registry, config, directory, {where: False}).get(where)
            for task in islice(iterate(source), LOOKED_AT) if source is not None else ():
                found.setdefault(pick_environment(names, task), task)
        except ToolrlError as error:
            print(loaded.hide(f"note: no task of {where} is read: {error.message}"), file=sys.stderr)
    return found
