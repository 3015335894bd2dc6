"""What the verl plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Command, Observer, Reward, TaskSource, Toolset

_PACKAGE = "toolrl_plugin_verl"


@hookimpl
def toolrl_datasets() -> Iterator[Component[TaskSource]]:
    """The data set `verl`."""
    yield Component(
        "verl",
        f"{_PACKAGE}.dataset:VerlDataset",
        summary="Rows of verl's parquet or JSON Lines files, images included.",
        options=f"{_PACKAGE}.options:VerlDatasetOptions",
    )


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """The toolset `verl`."""
    yield Component(
        "verl",
        f"{_PACKAGE}.toolset:VerlToolset",
        summary="Tools of verl's tool YAML, BaseTool subclasses, and its function tools.",
        options=f"{_PACKAGE}.options:VerlToolOptions",
    )


@hookimpl
def toolrl_rewards() -> Iterator[Component[Reward]]:
    """The reward `verl`."""
    yield Component(
        "verl",
        f"{_PACKAGE}.reward:VerlReward",
        summary="verl's score: by the row's data_source, or of your own compute_score.",
        options=f"{_PACKAGE}.options:VerlRewardOptions",
    )


@hookimpl
def toolrl_observers() -> Iterator[Component[Observer]]:
    """The observer `verl_dump`."""
    yield Component(
        "verl_dump",
        f"{_PACKAGE}.dump:VerlDump",
        summary="Rollout dumps as verl's trainer.rollout_data_dir has them.",
        options=f"{_PACKAGE}.options:VerlDumpOptions",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Command]]:
    """The command `toolrl verl convert`."""
    yield Component(
        "convert",
        f"{_PACKAGE}.convert.command:VerlConvert",
        summary="Write a toolrl config from a config or a start script of verl.",
    )
