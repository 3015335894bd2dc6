"""The hooks of core's own plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl.component import Component
from toolrl.hookspecs import hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Observer, Reward, TaskSource


@hookimpl
def toolrl_datasets() -> Iterator[Component[TaskSource]]:
    """Data sets that are files of rows."""
    yield Component(
        "jsonl",
        "toolrl.builtin.datasets:jsonl",
        summary="Rows of JSON Lines files.",
        options="toolrl.builtin.options:FileDatasetOptions",
    )
    yield Component(
        "parquet",
        "toolrl.builtin.datasets:parquet",
        summary="Rows of Parquet files.",
        options="toolrl.builtin.options:FileDatasetOptions",
    )


@hookimpl
def toolrl_rewards() -> Iterator[Component[Reward]]:
    """Rewards that any task can have."""
    yield Component(
        "format",
        "toolrl.builtin.rewards:FormatReward",
        summary="The share of calls that are well-formed.",
        options="toolrl.builtin.rewards:FormatRewardOptions",
    )


@hookimpl
def toolrl_observers() -> Iterator[Component[Observer]]:
    """Observers that show or write a run's progress."""
    yield Component(
        "console",
        "toolrl.builtin.observers:PlainConsole",
        summary="A line for each step; toolrl-plugin-console takes its place.",
        options="toolrl.builtin.options:PlainConsoleOptions",
        fallback=True,
    )
    yield Component(
        "jsonl",
        "toolrl.builtin.observers:JsonlObserver",
        summary="One JSON line a step, to standard output or a file.",
        options="toolrl.builtin.options:JsonlOptions",
    )
