"""AReaL's BaseTool, for classes that come without AReaL: `from toolrl_plugin_areal.tools import BaseTool, …`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class ToolCallStatus(Enum):
    """How an execution ended."""

    SUCCESS = "success"
    ERROR = "error"
    NOT_FOUND = "not_found"


class ToolType(Enum):
    """Names of AReaL's tools; `tool_type` of another may be a text, or a member of an enumeration of yours."""

    PYTHON = "python"
    CALCULATOR = "calculator"
    BASH = "bash"


@dataclass
class ToolDescription:
    """The description that the model sees."""

    name: str
    description: str
    parameters: dict[str, str]
    parameter_prompt: str
    example: str


@dataclass
class ToolMarkers:
    """What stands around a call."""

    start_markers: list[str]
    end_markers: list[str]


class BaseTool:
    """A tool that is called by markers, whose subclass defines these. One object an episode; `aclose` or `close`, where
    it has one, ends it."""

    tool_type: Any
    """Its name: a property, as those below."""
    description: Any
    """A ToolDescription."""
    markers: Any
    """ToolMarkers."""
    parse_parameters: Callable[[str], dict[str, Any]]
    """The parameters of a call, of its text with the markers."""
    execute: Callable[[dict[str, Any]], tuple[str, ToolCallStatus]]
    """The answer, and how it went; `async def aexecute` in its place may await."""

    def __init__(self, timeout: int = 30, debug_mode: bool = False) -> None:
        self.timeout = timeout
        self.debug_mode = debug_mode
