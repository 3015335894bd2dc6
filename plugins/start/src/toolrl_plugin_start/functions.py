"""The components `function`: Python of the user's own, by `file.py:name` or `module:name`, without a package."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from toolrl.builtin.datasets import FieldMapping, given_tasks
from toolrl.builtin.rewards import FunctionReward, check_reward_function
from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext, TaskSource, Toolset
from toolrl.tools import as_toolset, tool
from toolrl.tools.toolset import is_tool_function
from toolrl_common.user_classes import load_object


class FunctionOptions(BaseModel):
    """Options of a component that is Python of the user's own."""

    model_config = ConfigDict(extra="forbid")

    target: str = Field(
        pattern=r".:[A-Za-z_][\w.]*$",
        description="The object, as `file.py:name` or `module:name`. Paths start where the run is started. A class, or "
        "a function with the parameters `options` and `context`, is called to make it.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of a class or a function; `options` of one that takes it."
    )

    def check_files(self) -> None:
        """Raise ConfigError where the target can't be imported."""
        load_object(self.target, None)


class FunctionToolOptions(FunctionOptions):
    """Options of the tool `function`."""

    target: str = Field(
        pattern=r".:[A-Za-z_][\w.]*$",
        description="The tool, as `file.py:name` or `module:name`: a function or another callable with type hints "
        "and a docstring, with `@tool` or without, a `Tool` class, or a toolset. Paths start where the run is started.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of a `Tool` class.")


class FunctionRewardOptions(FunctionOptions):
    """Options of the reward `function`."""

    target: str = Field(
        pattern=r".:[A-Za-z_][\w.]*$",
        description="The reward, as `file.py:name` or `module:name`: a function of an episode that returns a number, a "
        "`Score`, or whether the answer is correct, `async` or not; or a class with `score`. Paths start where the run "
        "is started.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the function or the class.")

    def check_files(self) -> None:
        """Raise ConfigError where the target can't be imported, or can't be called with an episode."""
        _check_reward(load_object(self.target, None), self)


class FunctionDataOptions(FunctionOptions):
    """Options of the data set `function`."""

    target: str = Field(
        pattern=r".:[A-Za-z_][\w.]*$",
        description="The rows, as `file.py:name` or `module:name`: a list of dicts or of `Task`, a `datasets.Dataset`, "
        "a data frame; or a function that returns or yields them. Paths start where the run is started.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the function.")
    limit: int | None = Field(None, ge=1, description="Only the first so many rows.")
    fields: FieldMapping = Field(default_factory=FieldMapping, description="The columns of a row's fields.")
    environment: str | None = Field(None, description="The environment of rows that name none.")


def build_tool(options: FunctionToolOptions, context: BuildContext) -> Toolset:
    """The toolset of the user's object. Raises ConfigError where it can't be imported, ComponentLoadError where it is
    no tool."""
    target = load_object(options.target, context.where or None)
    if is_tool_function(target):
        try:
            target = tool(target)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error), where=context.where or None) from error
    return as_toolset(target, options.options or None, context)


def build_reward(options: FunctionRewardOptions, context: BuildContext) -> Any:
    """The reward of the user's function or class. Raises ConfigError where it can't be imported or called."""
    target = load_object(options.target, context.where or None)
    if _makes(target):
        target = _made(target, options, context)
        return FunctionReward(target) if callable(target) and not _scores(target) else target
    _check_reward(target, options, context.where or None)
    return target if _scores(target) else FunctionReward(functools.partial(target, **options.options))


def build_dataset(options: FunctionDataOptions, context: BuildContext) -> TaskSource:
    """The tasks of the user's rows. Raises ConfigError where they can't be imported or have no rows."""
    rows = _made(load_object(options.target, context.where or None), options, context)
    if inspect.isgenerator(rows):
        rows = list(rows)
    return given_tasks(rows, context.where, options.fields, options.limit, options.environment)


def build_object(options: FunctionOptions, context: BuildContext) -> Any:
    """The user's object, or what the user's class makes. Raises ConfigError where it can't be imported."""
    return _made(load_object(options.target, context.where or None), options, context)


def _check_reward(target: Any, options: FunctionRewardOptions, where: str | None = None) -> None:
    if _makes(target):
        return
    if _scores(target):
        _refuse_options(options, where)
    elif callable(target):
        try:
            check_reward_function(target, options.options)
        except TypeError as error:
            raise ConfigError(str(error), where=where) from error
    else:
        text = f"{options.target} is of type {type(target).__name__}; expected a function of an episode or a class"
        raise ConfigError(text, where=where)


def _scores(target: Any) -> bool:
    return hasattr(target, "score") or hasattr(target, "score_group")


def _makes(target: Any) -> bool:
    """Whether calling the target gives the component: it is a class, or a factory `(options, context)`."""
    return isinstance(target, type) or (inspect.isroutine(target) and _takes_context(target))


def _takes_context(target: Any) -> bool:
    return list(inspect.signature(target).parameters) == ["options", "context"]


def _made(target: Any, options: FunctionOptions, context: BuildContext) -> Any:
    """What a class or a function gives; another object as it is."""
    if not isinstance(target, type) and not inspect.isroutine(target):
        _refuse_options(options, context.where or None)
        return target
    return target(dict(options.options), context) if _takes_context(target) else target(**options.options)


def _refuse_options(options: FunctionOptions, where: str | None) -> None:
    if options.options:
        text = f"options have no effect: {options.target} is an object; expected a function or a class"
        raise ConfigError(text, where=where)
