"""Options of the parsers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class HermesOptions(BaseModel):
    """Options of the parser `hermes`."""

    model_config = ConfigDict(extra="forbid")

    repair: bool = Field(
        False,
        description="Accept trailing commas, single quotes, raw line breaks in strings, Python's True, False and None, "
        "and arguments written as a string of JSON; such a call is marked `recovered`, so that a reward can see it.",
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


class Qwen3CoderOptions(BaseModel):
    """Options of the parser `qwen3_coder`."""

    model_config = ConfigDict(extra="forbid")

    repair: bool = Field(
        False,
        description="Mend objects and lists in values: trailing commas, single quotes, raw line breaks in strings, "
        "Python's True, False and None; such a call is marked `recovered`.",
    )
    lenient_json: bool = Field(
        False, description="Also take a JSON object without tags, bare or in a code fence, that names a known tool."
    )
    call_ends_thinking: bool = Field(
        True, description="In a thinking block that is never closed, a call's opening tag ends the thinking."
    )
    stop_after_call: bool = Field(False, description="End the turn with its first call's closing tag.")
