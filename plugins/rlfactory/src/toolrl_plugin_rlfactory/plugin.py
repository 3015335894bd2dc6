"""What the rlfactory plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Reward, ToolParser, Toolset

_PACKAGE = "toolrl_plugin_rlfactory"


@hookimpl
def toolrl_parsers() -> Iterator[Component[ToolParser]]:
    """The parser `rlfactory`."""
    yield Component(
        "rlfactory",
        f"{_PACKAGE}.parser:RLFactoryParser",
        summary="Calls and answers as RLFactory's Qwen managers read and answer them, or your own manager does.",
        options=f"{_PACKAGE}.options:EnvParserOptions",
    )


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """The toolset `rlfactory`."""
    yield Component(
        "rlfactory",
        f"{_PACKAGE}.toolset:RLFactoryToolset",
        summary="The tools of your own RLFactory Env or ToolManager.",
        options=f"{_PACKAGE}.options:EnvToolOptions",
    )


@hookimpl
def toolrl_rewards() -> Iterator[Component[Reward]]:
    """The reward `rlfactory`."""
    yield Component(
        "rlfactory",
        f"{_PACKAGE}.reward:RLFactoryReward",
        summary="The scores of RLFactory's SearchEnv or of your own Env, step rewards included.",
        options=f"{_PACKAGE}.options:EnvRewardOptions",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl rlfactory convert`."""
    yield Component(
        "convert",
        f"{_PACKAGE}.convert:RLFactoryConvert",
        summary="Write a toolrl config from a start script or a config of RLFactory.",
    )
