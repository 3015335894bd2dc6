"""Messages and the calls in them, as parsers, tools and chat formats exchange them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from toolrl.token_types import Span

Role = Literal["system", "user", "assistant", "tool"]
IMAGE_MARK = "<image>"
"""Where an image stands in a message's content."""


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a video inside a message or a tool's result."""

    kind: Literal["image", "video"]
    data: Any
    """A PIL image, a list of frames, or a path; the chat format's processor decides what it takes."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a parser read from a turn."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """Unique in its episode; given by the episode, empty as it leaves the parser."""
    span: Span = (0, 0)
    """Characters of the turn's text that this call was read from, tags included."""
    tokens: Span | None = None
    """The same as tokens of the trajectory's ids, where these are known."""
    raw: str = ""
    """The text of `span`."""
    recovered: bool = False
    """True where `repair` had to mend the text, so that a reward can see it."""


@dataclass(frozen=True, slots=True)
class CallError:
    """A call that a parser saw but couldn't read. It is answered to the model like a call."""

    kind: str
    """`unclosed, empty, invalid_json, extra_data, not_object, missing_name, bad_name, missing_arguments, bad_arguments,
    malformed, stray_close, too_deep, too_many_calls`."""
    message: str
    """What was wrong and what the right form is, for the model."""
    name: str | None = None
    """The tool's name where it could be read."""
    id: str = ""
    span: Span = (0, 0)
    tokens: Span | None = None
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, in the field's usual shape."""

    role: Role
    content: str = ""
    media: tuple[Media, ...] = ()
    """Images and videos; placed where the content holds `<image>` or `<video>`, else before the text."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    """For role `tool`: the tool that answered."""
    reasoning: str | None = None
    """For role `assistant`: the text of its thinking block."""
    trained: bool = True
    """For role `assistant`: whether fine-tuning has it in the loss; a row says it by `weight`."""
