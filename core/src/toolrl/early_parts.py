"""Checks made before a model is loaded: tools and rewards are built without starting them, and first rows are read.

Loading a model takes minutes, and most mistakes in a user's own code and data show up as soon as they are touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolrl.building import build_component
from toolrl.config.frame import ComponentUse
from toolrl.config.load import LoadedConfig
from toolrl.config.model import EnvironmentConfig
from toolrl.errors import ConfigError, ToolrlError
from toolrl.loop.data import CheckedTasks
from toolrl.loop.mixture import parts_of
from toolrl.plugins.registry import Registry
from toolrl.preflight import build_datasets, run_directory
from toolrl.protocols import BuildContext, TaskSource
from toolrl.tools.function import FunctionTool
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.toolset import function_tools


@dataclass
class PartsReport:
    """Results of building the tools and rewards of all environments."""

    problems: list[str] = field(default_factory=list)
    """Mistakes, each with its place in the config."""
    notes: list[str] = field(default_factory=list)
    """Remarks on parts that can't be built without the model, and on tools that describe nothing."""


class NeedsModelError(Exception):
    """A component used something that exists only after the model is loaded."""


class _AfterLoading:
    """Placeholder for a tokenizer, a processor or a chat format. Any use of it raises NeedsModelError."""

    def __getattr__(self, name: str) -> Any:
        raise NeedsModelError(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NeedsModelError

    def __len__(self) -> int:
        raise NeedsModelError


def check_before_load(
    loaded: LoadedConfig, registry: Registry, data: Mapping[str, bool], *, parts: bool = True, rows: bool = True
) -> tuple[dict[str, TaskSource], list[str]]:
    """Build the data sets, as `build_datasets`, and with `parts` all tools and rewards; with `rows` read first rows.

    Returns the data sets and the notes on parts. Raises a ConfigError with every mistake, or a data set's own error if
    it is the only one.
    """
    report = check_parts(loaded, registry) if parts else PartsReport()
    directory = run_directory(loaded.config).absolute()
    datasets: dict[str, TaskSource] = {}
    errors = []
    for where, needed in data.items():
        try:
            datasets |= build_datasets(registry, loaded.config, directory, {where: needed})
            source = datasets.get(where)
            for part in parts_of(source) if rows and source is not None else ():
                if isinstance(part, CheckedTasks):
                    part.check_first()
        except ToolrlError as error:
            errors.append((where, error))
    if len(errors) == 1 and not report.problems:
        raise errors[0][1]
    problems = [*report.problems, *(loaded.hide(_line(where, error)) for where, error in errors)]
    if problems:
        raise ConfigError(problems, where=loaded.source, hint="`toolrl config check --import` finds such mistakes too.")
    return datasets, report.notes


def check_parts(loaded: LoadedConfig, registry: Registry) -> PartsReport:
    """Build every tool and reward. A component that needs the model for it gets a note and no verdict."""
    report = PartsReport()
    later: Any = _AfterLoading()
    context = BuildContext(
        name="",
        seed=loaded.config.seed,
        run_dir=run_directory(loaded.config).absolute(),
        tokenizer=later,
        processor=later,
        chat_format=later,
    )
    for name, environment in loaded.config.environments.items():
        _check_environment(f"environments.{name}", environment, registry, context, report)
    report.problems = [loaded.hide(line) for line in report.problems]
    return report


def _check_environment(
    where: str, environment: EnvironmentConfig, registry: Registry, context: BuildContext, report: PartsReport
) -> None:
    entries = []
    for index, use in enumerate(environment.tools):
        place = f"{where}.tools[{index}]"
        toolset = _built(registry, "tools", use, replace(context, name=use.use, where=place), report)
        if toolset is not None:
            entries.append(ToolEntry(use.use, toolset, rename=use.rename, policy=PolicyOptions(**use.policy)))
            report.notes += [f"{place}: {line}" for line in _undescribed(function_tools(toolset))]
    for index, reward in enumerate(environment.rewards):
        place = f"{where}.rewards[{index}]"
        _built(registry, "rewards", reward, replace(context, name=reward.use, where=place, chat_format=None), report)
    try:
        ToolBox(entries, cut=_whole)  # The chat format that counts tokens comes with the model.
    except ConfigError as error:
        report.problems.append(_line(f"{where}.tools", error))


def _built(registry: Registry, kind: str, use: ComponentUse, context: BuildContext, report: PartsReport) -> Any:
    """The component, or None if it can't be built; the report says why."""
    try:
        return build_component(registry, kind, use, context, context.where)
    except ToolrlError as error:
        if any(isinstance(it, NeedsModelError) for it in _causes(error)):
            report.notes.append(f"{context.where}: {use.use!r} needs the model and is built after it is loaded")
        else:
            report.problems.append(_line(context.where, error))
    return None


def _whole(text: str, max_tokens: int, side: str) -> tuple[str, bool]:
    """Stands for a cut of results; nothing is called here."""
    return text, False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _line(where: str, error: ToolrlError) -> str:
    """An error as a line of a report: its place, message and hint."""
    place = "" if error.message.startswith(where) else f"{where}: "
    row = f"{error.where}: " if error.where and not error.where.startswith(where) else ""
    return f"{place}{row}{error.message}" + (f"; {error.hint}" if error.hint else "")


def _undescribed(tools: list[FunctionTool]) -> Iterator[str]:
    for tool in tools:
        if not tool.spec.description.strip():
            yield f"the tool {tool.name!r} has no docstring, so the model reads its name and parameters alone"
