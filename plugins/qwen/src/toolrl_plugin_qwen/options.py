"""Options of the parsers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class QwenOptions(BaseModel):
    """Options of the parsers `hermes` and `qwen3_coder`."""

    model_config = ConfigDict(extra="forbid")

    repair: bool = Field(
        False,
        description="Accept trailing commas, single quotes, raw line breaks in strings, Python's True, False and None: "
        "`hermes` in calls, and arguments written as a string of JSON; `qwen3_coder` in objects and lists of values. "
        "Such a call is marked `recovered`, so that a reward can see it.",
    )
    lenient_json: bool = Field(
        False,
        description="Also take a JSON object without tags, bare or in a code fence, as a call where it names a known "
        "tool (Qwen2.5-Coder-Instruct writes those).",
    )
    call_ends_thinking: bool = Field(
        True,
        description="In a thinking block that is never closed, a call's opening tag ends the thinking. False: all of "
        "such a block is thinking, and nothing in it runs.",
    )
    stop_after_call: bool = Field(
        False,
        description="End the turn with its first call's closing tag, for models that go on and invent the result. "
        "False: the model ends its turn itself, and may make several calls in it.",
    )
