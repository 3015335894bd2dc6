"""Options of the parser and of the chat formats."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class TirParserOptions(BaseModel):
    """Options of the parser `tir`."""

    model_config = ConfigDict(extra="forbid")

    call_ends_thinking: bool = Field(
        True,
        description="In a thinking block that is never closed, what opens a call ends the thinking. False: all of such "
        "a block is thinking, and nothing in it runs.",
    )


class TirFormatOptions(BaseModel):
    """Options of the chat format `tir`."""

    model_config = ConfigDict(extra="forbid")

    chat_template: str | None = Field(
        None, description="Instead of the tokenizer's own: a path to a Jinja file, or the template itself."
    )
    template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Variables for the template, such as `enable_thinking: false`."
    )
    turn_end: list[str] = Field(
        default_factory=list,
        description="Texts, each one token of the vocabulary, that end an assistant turn besides the template's end "
        "marks, the end-of-sequence token and what the model's generation_config.json names.",
    )
    preamble_text: str | None = Field(
        None,
        description="Own wording of what the system message tells of the tools; `{tools}` in it stands for the "
        "paragraphs on the tools. Empty: nothing is told.",
    )


INTRODUCTION = "A conversation between User and Assistant. The user asks a question, and the Assistant solves it."
INSTRUCTION = (
    "Please integrate natural language reasoning with programs to solve the problem above, and put your final answer "
    "within \\boxed{}."
)


class TorlOptions(BaseModel):
    """Options of the chat format `torl`."""

    model_config = ConfigDict(extra="forbid")

    introduction: str = Field(
        INTRODUCTION, description="The first line of a prompt; a system message stands in its place."
    )
    instruction: str = Field(
        INSTRUCTION, description="What the user asks for before each question. Empty: the question alone."
    )
    turn_end: list[str] = Field(
        default_factory=list,
        description="Texts, each one token of the vocabulary, that end an assistant turn besides the end-of-sequence "
        "token and what the model's generation_config.json names. Demonstrations end with the first, or with the "
        "end-of-sequence token where there is none.",
    )
    add_bos: bool | None = Field(
        None, description="Begin with the beginning-of-sequence token; None does as the tokenizer itself does."
    )
