"""Options of the parser and of the chat formats."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from toolrl_plugin_chat.options import LayoutOptions, SourceOptions


class TirParserOptions(BaseModel):
    """Options of the parser `tir`."""

    model_config = ConfigDict(extra="forbid")

    call_ends_thinking: bool = Field(
        True,
        description="In a thinking block that is never closed, what opens a call ends the thinking. False: all of such "
        "a block is thinking, and nothing in it runs.",
    )


class TirFormatOptions(SourceOptions):
    """Options of the chat format `tir`."""

    preamble_text: str | None = Field(
        None,
        description="Own wording of the tools' description in the system message; `{tools}` in it stands for the "
        "paragraphs on the tools. Empty: no description.",
    )


INTRODUCTION = "A conversation between User and Assistant. The user asks a question, and the Assistant solves it."
INSTRUCTION = (
    "Please integrate natural language reasoning with programs to solve the problem above, and put your final answer "
    "within \\boxed{}."
)


class TorlOptions(LayoutOptions):
    """Options of the chat format `torl`."""

    introduction: str = Field(
        INTRODUCTION, description="The first line of a prompt; a system message stands in its place."
    )
    instruction: str = Field(
        INSTRUCTION, description="What the user asks for before each question. Empty: the question alone."
    )
