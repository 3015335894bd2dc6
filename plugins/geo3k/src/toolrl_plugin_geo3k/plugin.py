"""What the geo3k plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Reward, TaskSource, Toolset

_PACKAGE = "toolrl_plugin_geo3k"


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """The tool `calc_geo3k_reward`."""
    yield Component(
        "calc_geo3k_reward",
        f"{_PACKAGE}.tool:GeometryTool",
        summary="Scores the model's answer to a geometry problem.",
        options=f"{_PACKAGE}.options:Geo3kToolOptions",
    )


@hookimpl
def toolrl_rewards() -> Iterator[Component[Reward]]:
    """The reward `geo3k`."""
    yield Component(
        "geo3k",
        f"{_PACKAGE}.reward:Geo3kReward",
        summary="A right answer in a box, and a little for the form.",
        options=f"{_PACKAGE}.options:Geo3kRewardOptions",
    )


@hookimpl
def toolrl_datasets() -> Iterator[Component[TaskSource]]:
    """The data set `geo3k`."""
    yield Component(
        "geo3k",
        f"{_PACKAGE}.dataset:Geo3k",
        summary="Geometry problems with pictures, from files of the public data set.",
        options=f"{_PACKAGE}.options:Geo3kDataOptions",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl geo3k data`."""
    yield Component(
        "data",
        f"{_PACKAGE}.command:Data",
        summary="Write the problems as parquet files in verl's layout, with the tool's arguments.",
    )
