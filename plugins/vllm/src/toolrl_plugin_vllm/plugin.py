"""Registers the engines `vllm` and `openai`, and vLLM's tool parsers under their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl
from toolrl_plugin_vllm.packages import parsers

if TYPE_CHECKING:
    from toolrl.protocols import RolloutEngine, ToolParser


@hookimpl
def toolrl_engines() -> Iterable[Component[RolloutEngine]]:
    """vLLM itself, and a server."""
    yield Component(
        "vllm",
        "toolrl_plugin_vllm.engine:VllmEngine",
        summary="vLLM in the trainer's process or beside it; each weight update is checked against the trainer.",
        options="toolrl_plugin_vllm.options:VllmEngineOptions",
        check="toolrl_plugin_vllm.packages:check",
    )
    yield Component(
        "openai",
        "toolrl_plugin_vllm.server:OpenaiEngine",
        summary="A server that takes and gives token ids: vLLM's, SGLang's, and others with their interfaces.",
        options="toolrl_plugin_vllm.options:OpenaiEngineOptions",
    )


@hookimpl
def toolrl_parsers() -> Iterable[Component[ToolParser]]:
    """`vllm/NAME` for each tool parser of the vLLM that is installed."""
    for name in parsers():
        yield Component(
            name,
            "toolrl_plugin_vllm.parser:VllmParser",
            summary=f"vLLM's tool parser {name}.",
            options="toolrl_plugin_vllm.options:VllmParserOptions",
            short=False,
        )
