"""What the reasoning-gym plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Reward, TaskSource

_PACKAGE = "toolrl_plugin_reasoning_gym"


@hookimpl
def toolrl_datasets() -> Iterator[Component[TaskSource]]:
    """The data set `reasoning_gym`."""
    yield Component(
        "reasoning_gym",
        f"{_PACKAGE}.dataset:ReasoningGym",
        summary="Tasks of one generator of reasoning_gym, or of a mixture of several.",
        options=f"{_PACKAGE}.options:DataOptions",
    )


@hookimpl
def toolrl_rewards() -> Iterator[Component[Reward]]:
    """The reward `reasoning_gym`."""
    yield Component(
        "reasoning_gym",
        f"{_PACKAGE}.reward:ReasoningGymReward",
        summary="What the task's own generator scores the answer with, in processes behind walls.",
        options=f"{_PACKAGE}.options:ReasoningGymRewardOptions",
        check=f"{_PACKAGE}.reward:check",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl reasoning-gym list`."""
    yield Component(
        "list",
        f"{_PACKAGE}.commands:ListCommand",
        summary="The generators, with their settings and defaults.",
    )
