"""What the plugin `objectives` registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import AdvantageEstimator, PolicyLoss


@hookimpl
def toolrl_advantages() -> Iterator[Component[AdvantageEstimator]]:
    """The advantage estimators."""
    yield Component(
        "gdpo",
        "toolrl_plugin_objectives.gdpo:GDPO",
        summary="Each reward normalised in its group, then summed (arXiv 2601.05242).",
    )
    yield Component(
        "maxrl",
        "toolrl_plugin_objectives.maxrl:MaxRL",
        summary="Distance to the group's mean over that mean: maximum likelihood (arXiv 2602.02710).",
    )
    yield Component(
        "gigpo",
        "toolrl_plugin_objectives.gigpo:GiGPO",
        summary="Episodes compared in their group, and turns in equal states (arXiv 2505.10978).",
        options="toolrl_plugin_objectives.options:GiGPOOptions",
    )


@hookimpl
def toolrl_policy_losses() -> Iterator[Component[PolicyLoss]]:
    """The policy losses."""
    yield Component(
        "dppo",
        "toolrl_plugin_objectives.dppo:DPPO",
        summary="A trust region on absolute probabilities (arXiv 2602.04879).",
        options="toolrl_plugin_objectives.options:DPPOOptions",
    )
