"""What the plugin `verifiers` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Harness, TaskSource


@hookimpl
def toolrl_datasets() -> Iterator[Component[TaskSource]]:
    """The tasks of an environment."""
    yield Component(
        "verifiers",
        "toolrl_plugin_verifiers.dataset:Examples",
        summary="The data set of an environment of `verifiers`.",
        options="toolrl_plugin_verifiers.options:DataOptions",
    )


@hookimpl
def toolrl_harnesses() -> Iterator[Component[Harness]]:
    """What plays and scores them."""
    yield Component(
        "verifiers",
        "toolrl_plugin_verifiers.harness:VerifiersHarness",
        summary="Episodes played by the environment's own rollout, scored by its rubric.",
    )
