"""The tool `function`: Python of the user's own, by `file.py:name` or `module:name`, without a package."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext, Toolset
from toolrl.tools import as_toolset, tool
from toolrl.tools.toolset import is_tool_function
from toolrl_common.user_classes import load_object


class FunctionToolOptions(BaseModel):
    """Options of the tool `function`."""

    model_config = ConfigDict(extra="forbid")

    target: str = Field(
        pattern=r".:[A-Za-z_][\w.]*$",
        description="The tool, as `file.py:name` or `module:name`: a function or another callable with type hints "
        "and a docstring, with `@tool` or without, a `Tool` class, or a toolset. Paths start where the run is started.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of a `Tool` class.")


def build(options: FunctionToolOptions, context: BuildContext) -> Toolset:
    """The toolset of the user's object. Raises ConfigError where it can't be imported, ComponentLoadError where it is
    no tool."""
    target = load_object(options.target, context.where or None)
    if is_tool_function(target):
        try:
            target = tool(target)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error), where=context.where or None) from error
    return as_toolset(target, options.options or None, context)
