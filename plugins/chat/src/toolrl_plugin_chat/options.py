"""Options of the chat formats `template` and `plain`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NO_TEMPLATE = "Use `chat_format: plain` for a base model, or give one: `options: {chat_template: FILE.jinja}`."
"""Next step for a model without a chat template."""
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
"""Files in which transformers looks for templates, besides the settings of the tokenizer and the processor."""


class TurnEndOptions(BaseModel):
    """What ends a turn."""

    model_config = ConfigDict(extra="forbid")

    turn_end: list[str] = Field(
        default_factory=list,
        description="Texts, each one token of the vocabulary, that end an assistant turn besides the template's end "
        "marks, the end-of-sequence token and what the model's generation_config.json names. Without a template, "
        "demonstrations end with the first, or with the end-of-sequence token where there is none.",
    )


class SourceOptions(TurnEndOptions):
    """Options of formats that render with a chat template."""

    chat_template: str | None = Field(
        None, description="Instead of the tokenizer's own: a path to a Jinja file, or the template itself."
    )
    template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Variables for the template, such as `enable_thinking: false`."
    )

    def model_problem(self, folder: Path) -> str | None:
        """The problem of a model's folder for this format: it has no chat template, and the options give none."""
        if self.chat_template is not None or not (folder / "tokenizer_config.json").is_file():
            return None
        if any((folder / name).exists() for name in _TEMPLATES):
            return None
        for name in ("tokenizer_config.json", "processor_config.json"):
            with contextlib.suppress(OSError, ValueError):
                settings = json.loads((folder / name).read_bytes())
                if not isinstance(settings, dict) or settings.get("chat_template"):
                    return None
        return f"the model's tokenizer in {str(folder)!r} has no chat template; {NO_TEMPLATE}"


class LayoutOptions(TurnEndOptions):
    """Options of formats that lay conversations out as plain text."""

    add_bos: bool | None = Field(
        None, description="Begin with the beginning-of-sequence token; None does as the tokenizer itself does."
    )


class PreambleOptions(BaseModel):
    """How tools are described to the model."""

    preamble_style: Literal["full", "short"] = Field(
        "full",
        description="full: Qwen's wording with each tool's JSON Schema; short: one line a tool, for small models.",
    )


class TemplateOptions(SourceOptions, PreambleOptions):
    """Options of the chat format `template`."""

    preamble: Literal["auto", "always", "never"] = Field(
        "auto",
        description="What describes the tools. auto: the template, and toolrl's own preamble in the system message "
        "where the template ignores them; always: toolrl's preamble; never: the template alone.",
    )
    tool_role: Literal["auto", "tool", "user"] = Field(
        "auto",
        description="Where tool results stand. tool: in messages of role tool; user: as <tool_response> in a user "
        "message; auto: role tool where the template renders tools and calls itself, else user.",
    )


class PlainOptions(LayoutOptions, PreambleOptions):
    """Options of the chat format `plain`. A message is its role's prefix, its content and its role's suffix."""

    system_prefix: str = Field("", description="Before a system message.")
    system_suffix: str = Field("\n\n", description="After a system message.")
    user_prefix: str = Field("User: ", description="Before a user message.")
    user_suffix: str = Field("\n\n", description="After a user message.")
    assistant_prefix: str = Field(
        "Assistant:",
        description="Before an assistant message; the prompt ends with it. Where it ends without white space, an "
        "assistant's words begin with a blank, as most tokenizers want it.",
    )
    assistant_suffix: str = Field("\n\n", description="After an assistant message that another message follows.")
    tool_prefix: str = Field("Result: ", description="Before a tool's result.")
    tool_suffix: str = Field("\n\n", description="After a tool's result.")
    preamble: bool = Field(True, description="Describe the tools to the model, in the system message.")
    preamble_style: Literal["full", "short"] = Field(
        "short",
        description="full: Qwen's wording with each tool's JSON Schema; short: one line a tool, for small models.",
    )
