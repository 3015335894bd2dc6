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
from toolrl_plugin_verl.classes import import_hint
from toolrl_plugin_verl.imports import load_user
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
    module = run_file(file, where, collect := [])
    for value in vars(module).values():
        entry = getattr(value, MARK, None) if callable(value) else None
        if isinstance(entry, Registered) and entry not in collect:
            collect.append(entry)  # Of a module that was imported before.
    if not collect:
        raise ConfigError(
            f"function_tool_path: {path!r} registers no function",
            where=where,
            hint="Mark them: `from toolrl_plugin_verl.tools import function_tool`, then `@function_tool`.",
        )
    names = [entry.name for entry in collect]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"function_tool_path: {path!r} registers {twice!r} twice", where=where)
    return collect


def run_file(file: Path, where: str | None, collect: list[Registered] | None = None) -> Any:
    """A Python file as a module of its own. Raises ConfigError that names what it raised."""
    with import_errors(str(file), where, import_hint), collecting() as found:
        module = load_user(lambda: user_classes.run_file(file, once=False))
    if collect is not None:
        collect.extend(found)
    return module


def as_tool(entry: Registered, loop: LoopThread, *, step_rewards: bool) -> FunctionTool | Tool:
    """A registered function as a tool. Raises TypeError or ValueError for one without a usable spec."""
    call = _wrapped(entry, loop, counts=step_rewards)
    if entry.tool_schema is None:
        return _ChoosingTool(call, name=entry.name, timeout=SECONDS)
    return (_AsyncWithSchema if is_async(entry.fn) else _WithSchema)(entry, call)


class _ChoosingTool(FunctionTool):
    """A function whose docstring may say what is allowed for a parameter."""

    @functools.cached_property
    def spec(self) -> ToolSpec:
        return _with_choices(super().spec)


def _with_choices(spec: ToolSpec) -> ToolSpec:
    """A description that ends in `(choices: ["a", "b"])` lists the allowed values, as in transformers' schemas."""
    properties = {key: _chosen(value) for key, value in spec.parameters.get("properties", {}).items()}
    return replace(spec, parameters={**spec.parameters, "properties": properties})


def _chosen(schema: Any) -> Any:
    description = schema.get("description") if isinstance(schema, Mapping) else None
    found = _CHOICES.search(description) if isinstance(description, str) and "enum" not in schema else None
    if found is None:
        return schema
    try:
        choices = json.loads(found[1])
    except (ValueError, RecursionError):
        return schema
    if not isinstance(choices, list) or not choices:
        return schema
    return {**schema, "description": found.string[: found.start()].rstrip(), "enum": choices}


class _WithSchema(Tool):
    """A function that brings its schema: its arguments are passed as they come."""

    timeout = SECONDS

    def __init__(self, entry: Registered, call: Callable[..., Any]) -> None:
        super().__init__()
        assert entry.tool_schema is not None
        self.spec = replace(ToolSpec.from_function(entry.tool_schema), name=entry.name)
        self._signature = inspect.signature(entry.fn)
        self._call = call

    def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> Any:
        """Synchronous: core runs it in a thread."""
        return self._call(**self._bound(parameters))

    def _bound(self, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            self._signature.bind(**parameters)
        except TypeError as error:
            assert self.spec is not None
            raise ArgumentsError(f"Bad arguments for the tool {self.spec.name!r}: {error}.") from None
        return parameters


class _AsyncWithSchema(_WithSchema):
    """The same for a coroutine function."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> Any:
        return await self._call(**self._bound(parameters))


def _wrapped(entry: Registered, loop: LoopThread, *, counts: bool) -> Callable[..., Any]:
    """The function with its return as a ToolResult; its signature is seen through the wrapper."""
    if is_async(entry.fn):

        @functools.wraps(entry.fn)
        async def in_loop(*args: Any, **kwargs: Any) -> ToolResult:
            return from_function(await loop.call(entry.fn, *args, **kwargs), entry.name, counts=counts)

        return in_loop

    @functools.wraps(entry.fn)
    def in_thread(*args: Any, **kwargs: Any) -> ToolResult:
        return from_function(entry.fn(*args, **kwargs), entry.name, counts=counts)

    return in_thread
