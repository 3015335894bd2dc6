"""Calls of tools besides python and calculator, by their markers."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.chat.parser_roundtrip import markers_are_read
from toolrl.types import Markers, ToolCall, ToolSpec
from toolrl_plugin_tir.parser import TirParser
from toolrl_testing.fakes import FakeParser


def spec(name: str, markers: Markers | None = None, required: tuple[str, ...] = ("text",), **types: str) -> ToolSpec:
    properties = {key: {"type": types.get(key, "string")} for key in (*required, *types)}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ToolSpec(name, f"Does {name}.", schema, markers)


UNIT = spec("unit", note="string")
BASH = spec("bash", Markers(("```bash", "<bash>"), ("```", "</bash>")))
WORD = spec("word", Markers(("CALL",), ("END", "[/]")))
SQUARE = spec("square", required=("n",), n="integer")
LOOK = spec("look", required=("query", "k"), k="integer")
NOW = ToolSpec("now", "Tells the time.")
TOOLS = (UNIT, BASH, WORD, SQUARE, LOOK, NOW)


def read(text: str, *, stopped_by: str | None = None, tools: Any = TOOLS) -> list[Any]:
    turn = TirParser().parse(text, tools=tools, stopped_by=stopped_by)
    return [(item.name, dict(item.arguments)) if isinstance(item, ToolCall) else item.kind for item in turn.items]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("So <unit> 1 km </unit> is", [("unit", {"text": "1 km"})]),
        ("<UNIT>1 < 2\n</Unit>", [("unit", {"text": "1 < 2"})]),
        ("<unit>a</unit><calculator>1</calculator><unit>b</unit>",
         [("unit", {"text": "a"}), ("calculator", {"expression": "1"}), ("unit", {"text": "b"})]),
        ("```bash\nls -l\n```\nand", [("bash", {"text": "ls -l"})]),
        ("Run ```bash\nls\n``` <bash>pwd</bash>", [("bash", {"text": "ls"}), ("bash", {"text": "pwd"})]),
        ("<bash>echo '```'</bash>", [("bash", {"text": "echo '```'"})]),
        ("```bashful\n<unit>1</unit>\n```", []),
        ("CALL x END CALL y [/]", [("word", {"text": "x"}), ("word", {"text": "y"})]),
        ("CALLED x END", []),
        ("<square>12</square><square>x</square>", [("square", {"n": 12}), ("square", {"n": "x"})]),
        ('<look>{"query": "a", "k": 2}</look>', [("look", {"query": "a", "k": 2})]),
        ("<look>a</look><look>[1]</look>", ["bad_arguments", "bad_arguments"]),
        ("<now></now>", [("now", {})]),
        ("<unit></unit><unit>", ["empty", "unclosed"]),
        ("<unit>a<unit>b</unit>", ["unclosed", ("unit", {"text": "b"})]),
        ("<unit>a\n```python\n1\n```\n", ["unclosed", ("python", {"code": "1"})]),
        ("a</unit>", ["stray_close"]),
        ("<unit>\ud800</unit>", ["bad_arguments"]),
        ("<think><unit>1</unit></think>", []),
        ("```\n<unit>1</unit>\n```", []),
        ("<other>1</other>", []),
    ],
)  # fmt: skip
def test_what_stands_between_markers(text: str, found: list[Any]) -> None:
    assert read(text) == found


def test_markers_of_tools_that_are_not_there_are_text() -> None:
    turn = TirParser().parse("<unit>1 km</unit>", tools=[BASH])
    assert (turn.items, turn.content, turn.status) == ((), "<unit>1 km</unit>", "final")


def test_python_may_have_further_markers() -> None:
    code = ToolSpec("python", "Runs.", {"properties": {"code": {}}}, Markers(("<code>",), ("</code>",)))
    text = "<code>1</code>```python\n2\n```"
    assert read(text, tools=[code]) == [("python", {"code": "1"}), ("python", {"code": "2"})]


def test_generation_ends_where_a_call_may_be_complete() -> None:
    parser = TirParser()
    assert set(parser.stops_for("<think></think>", TOOLS)) >= {"```", "</python>", "</unit>", "</bash>", "END", "[/]"}
    assert "</unit>" not in parser.stops("")
    assert parser.stops_for("<think></think><unit>1", TOOLS) == ("</unit>",)
    assert parser.stops_for("<think></think>CALL 1", TOOLS) == ("END", "[/]")
    assert parser.stops_for("<think></think>x\n```bash\nls", TOOLS) == ("```",)
    assert read("<unit>1 km", stopped_by="</unit>") == [("unit", {"text": "1 km"})]
    assert TirParser().parse("The END", tools=TOOLS, stopped_by="END").status == "continue"
    assert TirParser().parse("<unit>1 END", tools=TOOLS, stopped_by="END").status == "continue"


def test_which_parsers_read_calls_by_markers() -> None:
    """The others would leave a config's `markers` without effect."""
    for markers in (Markers(("[sh]",), ("[/sh]",)), Markers(("```sh", "<sh>"), ("```", "</sh>"))):
        assert markers_are_read(TirParser(), "bash", markers)
        assert not markers_are_read(FakeParser(), "bash", markers)
