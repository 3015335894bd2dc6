"""`@function_tool` functions of a file, as tools of toolrl.

The spec comes from the function's hints and docstring, as with toolrl's own `@tool`, unless the function
brings a schema. Synchronous functions run in threads, asynchronous ones in the toolset's loop.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolrl.errors import ArgumentsError, ConfigError
from toolrl.tools import FunctionTool, Tool
from toolrl.tools.function import is_async
from toolrl.types import ToolResult, ToolSpec
from toolrl_common import user_classes
from toolrl_common.user_classes import import_errors
from toolrl_plugin_verl.adapter import SECONDS
from toolrl_plugin_verl.imports import import_hint, load_user
from toolrl_plugin_verl.loop import LoopThread
from toolrl_plugin_verl.results import from_function
from toolrl_plugin_verl.tools.function_tool import MARK, Registered, collecting

_CHOICES = re.compile(r"\(choices:([^()]*)\)\s*\Z", re.IGNORECASE)


def load_functions(path: str, where: str | None) -> list[Registered]:
    """Run the file and give what it registers. Raises ConfigError for a file that can't be run or registers nothing,
    and for a name that stands twice."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"function_tool_path: there is no file {path!r}", where=where)
    with collecting() as found:
        module = run_file(file, where)
    for value in vars(module).values():
        entry = getattr(value, MARK, None) if callable(value) else None
        if isinstance(entry, Registered) and entry not in found:
            found.append(entry)  # Of a module that was imported before.
    if not found:
        raise ConfigError(
            f"function_tool_path: {path!r} registers no function",
            where=where,
            hint="Mark them: `from toolrl_plugin_verl.tools import function_tool`, then `@function_tool`.",
        )
    names = [entry.name for entry in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"function_tool_path: {path!r} registers {twice!r} twice", where=where)
    return found


def run_file(file: Path, where: str | None) -> Any:
    """A Python file as a module of its own. Raises ConfigError that names what it raised."""
    with import_errors(str(file), where, import_hint):
        return load_user(lambda: user_classes.run_file(file, once=False))


def as_tool(entry: Registered, loop: LoopThread, *, step_rewards: bool) -> FunctionTool | Tool:
    """A registered function as a tool. Raises TypeError or ValueError for one without a usable spec."""
    call = _wrapped(entry, loop, counts=step_rewards)
    if entry.tool_schema is None:
        return _ChoosingTool(call, name=entry.name, timeout=SECONDS)
    return _SchemaTool(entry, call)


class _ChoosingTool(FunctionTool):
    """A function whose docstring may list what is allowed for a parameter: `(choices: ["a", "b"])` at the end of its
    description, as in transformers' schemas."""

    @functools.cached_property
    def spec(self) -> ToolSpec:
        spec = super().spec
        properties = {key: _chosen(value) for key, value in spec.parameters.get("properties", {}).items()}
        return replace(spec, parameters={**spec.parameters, "properties": properties})


def _chosen(schema: Any) -> Any:
    description = schema.get("description") if isinstance(schema, Mapping) else None
    found = _CHOICES.search(description) if isinstance(description, str) and "enum" not in schema else None
    try:
        choices = json.loads(found[1]) if found else None
    except (ValueError, RecursionError):
        choices = None
    if not found or not isinstance(choices, list) or not choices:
        return schema
    return {**schema, "description": found.string[: found.start()].rstrip(), "enum": choices}


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
