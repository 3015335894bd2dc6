"""What the areal plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Reward, TaskSource, ToolParser, Toolset

_PACKAGE = "toolrl_plugin_areal"


@hookimpl
def toolrl_datasets() -> Iterator[Component[TaskSource]]:
    """The data set `areal_tir`."""
    yield Component(
        "areal_tir",
        f"{_PACKAGE}.dataset:ArealTirData",
        summary="Rows of AReaL's TIR example: messages and answer, or ToRL's prompt and reward_model.",
        options=f"{_PACKAGE}.options:ArealTirDataOptions",
    )


@hookimpl
def toolrl_parsers() -> Iterator[Component[ToolParser]]:
    """The parser `areal_tir`."""
    yield Component(
        "areal_tir",
        f"{_PACKAGE}.parser:ArealTirParser",
        summary="The syntax of `tir` as AReaL reads it: one call a turn, the last; results cut to 256 characters.",
        options=f"{_PACKAGE}.options:ArealTirParserOptions",
    )


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """The tool `areal_tool`."""
    yield Component(
        "areal_tool",
        f"{_PACKAGE}.tool:ArealTool",
        summary="A class of AReaL's BaseTool kind, called by its own markers.",
        options=f"{_PACKAGE}.options:ArealToolOptions",
    )


@hookimpl
def toolrl_rewards() -> Iterator[Component[Reward]]:
    """The reward `areal_tir`."""
    yield Component(
        "areal_tir",
        f"{_PACKAGE}.reward:ArealTirReward",
        summary="Right or wrong by math-verify, with AReaL's bias and scaling.",
        options=f"{_PACKAGE}.options:ArealTirRewardOptions",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl areal convert`."""
    yield Component(
        "convert",
        f"{_PACKAGE}.convert.command:ArealConvert",
        summary="Write a toolrl config from a config of AReaL's TIR example.",
    )
