"""Tools besides `python`: the markers around their calls, and what stands between them.

A tool is called by the markers of its spec, or else by tags of its name, `<unit>1 km</unit>`. Between them stands the
text of its one argument; of a tool that requires several, a JSON object.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolrl.errors import ChatFormatError
from toolrl.tools.validation import arguments_form
from toolrl.types import Markers, ToolSpec
from toolrl_common.parsing import JsonFault, read_json
from toolrl_plugin_tir.syntax import ARGUMENTS, MARKS, OPENERS, STOPS


@dataclass(frozen=True, slots=True)
class MarkedTool:
    """A tool that is called by markers."""

    name: str
    markers: Markers
    argument: str | None
    """The argument that the text is; None where a JSON object has them all."""
    is_text: bool = True
    """False for an argument that is a number, a list …"""
    inside: str = ""
    """What stands between the markers, for the model."""

    @property
    def form(self) -> str:
        """How the model has to write a call."""
        return f"{self.markers.start[0]}{self.inside}{self.markers.end[0]}"

    @property
    def closers(self) -> list[str]:
        """End markers that mean nothing without their start."""
        return [text for text in self.markers.end if text.startswith("</")]

    def ends(self, start: int) -> tuple[str, ...]:
        """The markers that close a call which the start marker of this number opened."""
        starts, ends = self.markers
        return (ends[start],) if len(starts) == len(ends) else ends

    def read(self, text: str) -> dict[str, Any] | None:
        """The arguments; None for a text that holds none."""
        if self.argument is not None and self.is_text:
            return {self.argument: text}
        read: Any = read_json(text) if text else ({}, 0)
        valid = not isinstance(read, JsonFault) and read[1] == len(text)
        if self.argument is not None:
            return {self.argument: read[0] if valid else text}
        return read[0] if valid and isinstance(read[0], dict) else None

    def write(self, arguments: Mapping[str, Any]) -> str:
        """A call."""
        value = arguments.get(self.argument) if self.argument is not None and len(arguments) == 1 else arguments
        inside = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return f"{self.markers.start[0]}{inside}{self.markers.end[0]}"


CALCULATOR = MarkedTool("calculator", Markers(("<calculator>",), ("</calculator>",)), "expression", inside="EXPRESSION")


def marked_tools(specs: Sequence[ToolSpec]) -> Iterator[MarkedTool]:
    """Those of the tools that are called by markers, but for the calculator's usual ones."""
    for spec in specs:
        if spec.markers is None and spec.name in ARGUMENTS:
            continue
        markers = spec.markers or Markers((f"<{spec.name}>",), (f"</{spec.name}>",))
        properties = spec.parameters.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        names = [name for name in spec.parameters.get("required") or () if name in properties] or list(properties)
        if len(names) == 1:
            declared = properties[names[0]]
            kind = declared.get("type") if isinstance(declared, Mapping) else None
            is_text = kind not in ("integer", "number", "boolean", "array", "object")
            yield MarkedTool(spec.name, markers, names[0], is_text, names[0].upper())
        else:
            yield MarkedTool(spec.name, markers, None, inside=arguments_form(spec) if names else "")


def marked_by_name(specs: Sequence[ToolSpec], where: str) -> dict[str, MarkedTool]:
    """The same by name. Raises ChatFormatError for two with one start marker."""
    found = {tool.name: tool for tool in marked_tools(specs)}
    owners: dict[str, str] = {}
    for tool in found.values():
        for start in map(str.lower, tool.markers.start):
            if owners.setdefault(start, tool.name) != tool.name:
                raise ChatFormatError(
                    f"calls of {owners[start]!r} and of {tool.name!r} both begin with {start!r}",
                    where=where,
                    hint=f"Give one of them other `markers` in the config: {{use: …, markers: {{{tool.name}: {{start: "
                    "[…], end: […]}}}}.",
                )
    return found


@functools.lru_cache(maxsize=64)
def patterns(markers: tuple[Markers, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What a scanner looks for: marks in content, and what begins a call."""
    starts = "|".join(_literal(text) for tool in markers for text in tool.start)
    closers = "".join(f"{_literal(text)}|" for tool in markers for text in tool.end if text.startswith("</"))
    return (
        re.compile(f"{starts}|{closers}{MARKS.pattern}", MARKS.flags),
        re.compile(f"{starts}|{OPENERS.pattern}", OPENERS.flags),
    )


@functools.lru_cache(maxsize=256)
def end_pattern(ends: tuple[str, ...]) -> re.Pattern[str]:
    """One of these ends."""
    return re.compile(f"(?i:{'|'.join(map(re.escape, ends))})")


def stops(tools: Sequence[MarkedTool]) -> tuple[str, ...]:
    """What may end a call in content."""
    return tuple(dict.fromkeys((*STOPS, *(end for tool in tools for end in tool.markers.end))))


def _literal(text: str) -> str:
    """A marker in any case; one that ends like a word isn't the beginning of a longer word."""
    found = f"(?i:{re.escape(text)})" + (r"(?!\w)" if re.match(r"\w", text[-1]) else "")
    return rf"^[ \t]*+{found}|(?<!{text[0]}){found}" if text[0] in "`~" else found
