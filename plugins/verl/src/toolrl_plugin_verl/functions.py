"""`@function_tool` functions of a file, as tools of toolrl.

The spec comes from the function's hints and docstring, as with toolrl's own `@tool`, unless the function
brings a schema. Synchronous functions run in threads, asynchronous ones in the toolset's loop.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolrl.errors import ArgumentsError, ConfigError
from toolrl.tools import FunctionTool, Tool
from toolrl.tools.function import is_async
from toolrl.types import ToolResult, ToolSpec
from toolrl_common import user_classes
from toolrl_common.user_classes import import_errors
from toolrl_plugin_verl.adapter import SECONDS, LoopThread
from toolrl_plugin_verl.imports import import_hint, user_imports
from toolrl_plugin_verl.results import from_function
from toolrl_plugin_verl.tools.function_tool import MARK, Registered


def load_functions(path: str, where: str | None) -> list[Registered]:
    """Run the file and give what it registers. Raises ConfigError for a file that can't be run or registers nothing."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"function_tool_path: there is no file {path!r}", where=where)
    marked = (getattr(value, MARK, None) for value in vars(run_file(file, where)).values() if callable(value))
    found = [entry for entry in marked if isinstance(entry, Registered)]
    if not found:
        raise ConfigError(
            f"function_tool_path: {path!r} registers no function",
            where=where,
            hint="Mark them: `from verl.tools.function_tool import function_tool`, then `@function_tool`.",
        )
    return found


def run_file(file: Path, where: str | None) -> Any:
    """A Python file as a module of its own. Raises ConfigError that names what it raised."""
    with import_errors(str(file), where, import_hint), user_imports():
        return user_classes.run_file(file, once=False)


def as_tool(entry: Registered, loop: LoopThread, *, step_rewards: bool) -> FunctionTool | Tool:
    """A registered function as a tool. Raises TypeError or ValueError for one without a usable spec."""
    call = _wrapped(entry, loop, counts=step_rewards)
    if entry.tool_schema is None:
        return FunctionTool(call, name=entry.name, timeout=SECONDS)
    return _SchemaTool(entry, call)


class _SchemaTool(Tool):
    """A function that brings its schema: its arguments are passed as they come."""

    timeout = SECONDS

    def __init__(self, entry: Registered, call: Callable[..., Any]) -> None:
        super().__init__()
        assert entry.tool_schema is not None
        self.spec = replace(ToolSpec.from_function(entry.tool_schema), name=entry.name)
        self._signature = inspect.signature(entry.fn)
        self._call = call
        if is_async(entry.fn):
            self.execute = self._awaited  # type: ignore[method-assign]

    def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> Any:
        """Synchronous: core runs it in a thread."""
        try:
            self._signature.bind(**parameters)
        except TypeError as error:
            assert self.spec is not None
            raise ArgumentsError(f"Bad arguments for the tool {self.spec.name!r}: {error}.") from None
        return self._call(**parameters)

    async def _awaited(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> Any:
        return await type(self).execute(self, instance_id, parameters)


def _wrapped(entry: Registered, loop: LoopThread, *, counts: bool) -> Callable[..., Any]:
    """The function with its return as a ToolResult; its signature is seen through the wrapper."""

    @functools.wraps(entry.fn)
    async def in_loop(*args: Any, **kwargs: Any) -> ToolResult:
        return from_function(await loop.call(entry.fn, *args, **kwargs), entry.name, counts=counts)

    @functools.wraps(entry.fn)
    def in_thread(*args: Any, **kwargs: Any) -> ToolResult:
        return from_function(entry.fn(*args, **kwargs), entry.name, counts=counts)

    return in_loop if is_async(entry.fn) else in_thread
