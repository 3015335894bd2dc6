"""The tool `areal_tool`: a class of AReaL's `BaseTool` kind, with its own markers.

{use: areal_tool, options: {target: "tools.unit_tool:UnitTool", python_path: [examples/tir]}}
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from types import ModuleType
from typing import Any

from toolrl.errors import ConfigError, ToolError
from toolrl.protocols import BuildContext
from toolrl.tools import Tool
from toolrl.types import Markers, ToolSpec
from toolrl_common.user_classes import import_hint, load_object
from toolrl_plugin_areal.options import ArealToolOptions
from toolrl_plugin_tir.syntax import ARGUMENTS

_KNOWN = {
    "python": (["```python", "<python>"], ["```", "</python>"]),
    "calculator": (["<calculator>"], ["</calculator>"]),
}
"""Markers that the parser knows itself."""
_PARTS = ("tool_type", "description", "markers", "parse_parameters", "execute")


class ArealTool(Tool):
    """One object of the class an episode."""

    def __init__(self, options: ArealToolOptions, context: BuildContext) -> None:
        """Raises ConfigError."""
        super().__init__(options, context)
        self._where = context.where or None
        self._class = _load(options, self._where)
        self._of: dict[str, Any] = {}
        # AReaL's own BaseTool has an `aexecute` that blocks: it calls `execute`.
        own = {name for base in self._class.__mro__ if base.__name__ != "BaseTool" for name in vars(base)}
        self._coroutine = next((name for name in ("aexecute", "async_execute") if name in own), "")
        if self._coroutine:
            self.execute = self._awaited  # type: ignore[assignment]
        tool = self._make()
        name = str(getattr(tool.tool_type, "value", tool.tool_type))
        described, parameters = tool.description, dict(tool.description.parameters)
        self._markers = Markers(tuple(tool.markers.start_markers), tuple(tool.markers.end_markers))
        known = _KNOWN.get(name) == (tool.markers.start_markers, tool.markers.end_markers)
        self._argument = ARGUMENTS.get(name) or (next(iter(parameters)) if len(parameters) == 1 else "text")
        argument = parameters.get(self._argument, described.parameter_prompt)
        schema = {
            "type": "object",
            "properties": {self._argument: {"type": "string", "description": argument}},
            "required": [self._argument],
        }
        self.spec = ToolSpec(
            name, f"{described.description} {described.parameter_prompt}", schema, None if known else self._markers
        )

    def create(self, instance_id: str, **create_kwargs: Any) -> None:
        """A new object, as AReaL makes one for each episode."""
        self._of[instance_id] = self._make()

    def execute(self, instance_id: str, parameters: Any, **execute_kwargs: Any) -> str:
        """Run a call; what fails is an error that the model reads."""
        tool = self._of[instance_id]
        return _said(*tool.execute(self._parsed(tool, parameters)))

    async def _awaited(self, instance_id: str, parameters: Any, **execute_kwargs: Any) -> str:
        tool = self._of[instance_id]
        return _said(*await getattr(tool, self._coroutine)(self._parsed(tool, parameters)))

    async def release(self, instance_id: str, **release_kwargs: Any) -> None:
        """Let the object close what it has."""
        tool = self._of.pop(instance_id, None)
        close = getattr(tool, "aclose", None) or getattr(tool, "close", None)
        closing = close() if close is not None else None
        if inspect.isawaitable(closing):
            await closing

    def _make(self) -> Any:
        """An object of the class. Raises ConfigError."""
        try:
            return self._class(timeout=self.options.timeout, **self.options.kwargs)
        except Exception as error:
            problem = f"{self.options.target!r} can't be made: {type(error).__name__}: {error}"
            raise ConfigError(problem, where=self._where, hint=import_hint(error)) from error

    def _parsed(self, tool: Any, parameters: Any) -> dict[str, Any]:
        """What the tool itself reads from the call's text, markers included."""
        start, end, text = self._markers.start[0], self._markers.end[0], parameters[self._argument]
        between = "\n" if start[0] in "`~" else ""
        try:
            found: dict[str, Any] = tool.parse_parameters(f"{start}{between}{text}{between}{end}")
        except Exception as error:
            raise ToolError(f"Error: Failed to parse parameters - {error}") from error
        return found


def _said(result: Any, status: Any) -> str:
    if getattr(status, "value", status) != "success":
        raise ToolError(f"Error: Tool execution failed - {result}")
    return str(result)


def _load(options: ArealToolOptions, where: str | None) -> Any:
    _provide_areal()
    source = options.target.rpartition(":")[0]
    try:
        found = load_object(options.target, where, folders=options.python_path)
    except ConfigError as error:
        missing = getattr(error.__cause__, "name", None)
        if isinstance(missing, str) and source.startswith(missing):
            raise ConfigError(error.problems, where=where, hint="Name its folder in `python_path`.") from error
        raise
    lacking = [part for part in _PARTS if not hasattr(found, part)]
    if lacking:
        raise ConfigError(f"{options.target!r} has no {', '.join(lacking)}", where=where, hint="Subclass BaseTool.")
    return found


def _provide_areal() -> None:
    """Let files import `areal.utils.logging`, all that AReaL's own tools need of it, where AReaL isn't installed or, as
    in a clone, can't be imported."""
    try:
        importlib.import_module("areal.utils.logging")
    except Exception:  # noqa: BLE001 - whatever AReaL's own imports raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "areal"]:
            del sys.modules[name]
        package, utils = ModuleType("areal"), ModuleType("areal.utils")
        package.utils, utils.logging = utils, logging  # type: ignore[attr-defined]
        sys.modules.update({"areal": package, "areal.utils": utils, "areal.utils.logging": logging})
