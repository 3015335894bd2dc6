"""What the plugin api registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import ChatEngine, ChatFormat, ToolParser, TrainerBackend


@hookimpl
def toolrl_engines() -> Iterator[Component[ChatEngine]]:
    """The engine `chat`."""
    yield Component(
        "chat",
        "toolrl_plugin_api.engine:ApiEngine",
        summary="Any OpenAI-compatible endpoint, to be evaluated: chat completions with tools, token counts and cost.",
        options="toolrl_plugin_api.options:ChatOptions",
    )


@hookimpl
def toolrl_parsers() -> Iterator[Component[ToolParser]]:
    """The parser `api/native`."""
    target, summary = "toolrl_plugin_api.stand_ins:NativeCalls", "With the engine `chat`: the API reads the calls."
    yield Component("native", target, summary=summary, short=False)


@hookimpl
def toolrl_chat_formats() -> Iterator[Component[ChatFormat]]:
    """The chat format `api/characters`."""
    target = "toolrl_plugin_api.stand_ins:Characters"
    summary = "With the engine `chat`: no tokenizer; a token is taken to have three characters."
    yield Component("characters", target, summary=summary, short=False)


@hookimpl
def toolrl_trainers() -> Iterator[Component[TrainerBackend]]:
    """The trainer `api/none`."""
    target, summary = "toolrl_plugin_api.stand_ins:NoTrainer", "With the engine `chat`: trains nothing."
    yield Component("none", target, summary=summary, short=False)
