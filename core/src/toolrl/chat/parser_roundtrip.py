"""Checks before a run that the parser reads what the chat format writes: a model whose calls are not read looks like a
model that makes none."""

from __future__ import annotations

from toolrl.errors import ChatFormatError
from toolrl.protocols import ChatFormat, ReadsTokens, ToolParser
from toolrl.types import Markers, Message, ParsedTurn, ToolCall, ToolSpec

_SHOWN = 120
"""Characters of a call that a remark quotes."""


def calls_are_read(chat: ChatFormat, parser: ToolParser, tool: ToolSpec) -> str | None:
    """A remark where the parser finds no call in a turn that the format writes for one; None where it does, or where
    the format writes no such calls. All arguments of `tool` have to be texts."""
    call = ToolCall(tool.name, dict.fromkeys(tool.parameters["properties"], "x"), id="call_1")
    try:
        said = chat.say(Message("assistant", "", tool_calls=(call,)))
        opened = chat.open([Message("user", "x")], (tool,)).in_thinking
    except ChatFormatError:
        return None  # Its calls are of another kind, such as code, or its own trial reports more.
    decoded = chat.decode(said)
    if isinstance(parser, ReadsTokens):
        turn: ParsedTurn = parser.parse_ids(said, decoded, tools=(tool,), prompt_in_thinking=opened)
    else:
        turn = parser.parse(decoded.text, tools=(tool,), prefilled_thinking=opened)
    if any(isinstance(item, ToolCall) and item.name == tool.name for item in turn.items):
        return None
    shown = decoded.text if len(decoded.text) <= _SHOWN else f"{decoded.text[:_SHOWN]}…"
    return (
        f"it reads no call in the form that the chat format writes, {shown!r}: where the model writes calls like that, "
        "none is run. Choose the parser of the model's family, or a chat_format that describes this parser's form"
    )


def markers_are_read(parser: ToolParser, name: str, markers: Markers) -> bool:
    """Whether the parser finds a call, or a wrong one, between the markers of a tool of this name."""
    if isinstance(parser, ReadsTokens):
        return True  # It isn't asked for text.
    tool = ToolSpec(name, "", {"type": "object", "properties": {"text": {"type": "string"}}}, markers)
    return bool(parser.parse(f"{markers.start[0]}\nx\n{markers.end[0]}", tools=(tool,), prefilled_thinking=False).items)
