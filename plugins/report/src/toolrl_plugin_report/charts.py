"""The report's charts: the titles, order and units of the metrics that readers look for first.

Any other metric is shown too, under its own name, after these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from toolrl.runs.formatting import UNCERTAINTY

Unit = Literal["", "share", "seconds"]


@dataclass(frozen=True)
class Chart:
    """A chart of one metric or of several that share an axis."""

    title: str
    metrics: tuple[str, ...]
    """Names; one that ends in `/*` takes every metric with that beginning, one that ends in `@*` every k."""
    unit: Unit = ""
    note: str = ""
    """What the number means, in one sentence."""
    stacked: bool = False
    """Areas over each other, with what `time/step` holds besides as `other`."""


CHARTS: dict[str, tuple[Chart, ...]] = {
    "Results": (
        Chart("Accuracy", ("accuracy",), "share", "Answers judged correct; failed ones of evaluations are wrong."),
        Chart("Reward", ("reward/mean",), "", "Mean of the episodes' rewards."),
        Chart("Reward spread", ("reward/std",), "", "Standard deviation of the rewards."),
        Chart("avg@k and pass@k", ("avg@*", "pass@*"), "share", "Mean over k episodes of a task; any of k is correct."),
    ),
    "Environments": (
        Chart("Reward by environment", ("environment/reward/*",), "", "Mean of the rewards of its episodes."),
        Chart("Accuracy by environment", ("environment/accuracy/*",), "share", "Share of its answers judged correct."),
        Chart("Turns by environment", ("environment/turns/*",), "", "Assistant turns in one of its episodes."),
        Chart("Failures by environment", ("environment/errors/*",), "share", "Share of its episodes that failed."),
    ),
    "Data sets": (
        Chart("Reward by data set", ("dataset/reward/*",), "", "Mean of the rewards of its episodes."),
        Chart("Accuracy by data set", ("dataset/accuracy/*",), "share", "Share of its answers judged correct."),
        Chart("Turns by data set", ("dataset/turns/*",), "", "Assistant turns in one of its episodes."),
        Chart("Failures by data set", ("dataset/errors/*",), "share", "Share of its episodes that failed."),
    ),
    "Tools": (
        Chart("Calls per episode", ("calls/mean",), "", "Tool calls in an episode, on average."),
        Chart("Successful calls", ("calls/success",), "share", "Share of calls that a tool answered without an error."),
        Chart("Failed calls", ("calls/error/*",), "share", "Share of calls that were answered with an error, by kind."),
        Chart("Turns per episode", ("turns/mean",), "", "Assistant turns in an episode, on average."),
        Chart("Failed episodes", ("errors/rate",), "share", "Episodes that an exception ended; masked from the loss."),
        Chart("Failed episodes, number", ("errors/count",), "", "In evaluations they count as wrong."),
    ),
    "Length and end": (
        Chart("Tokens", ("tokens/sampled", "tokens/prompt"), "", "Tokens of an episode: sampled, and of its prompt."),
        Chart("Stop reasons", ("stop/*",), "share", "What ended the episodes."),
        Chart("Cut off", ("truncated",), "share", "Episodes that ran out of tokens or context."),
    ),
    "API": (
        Chart("Cost", ("usage/cost",), "", "Of all requests to the API, by the prices in the config."),
        Chart("Use of the API", ("usage/*",), "", "Sums over all episodes, as the API counted."),
    ),
    "Update": (
        Chart("Loss", ("loss",)),
        Chart("Parts of the loss", ("loss/*",)),
        Chart("Entropy", ("entropy",), "", "Of the policy on all sampled tokens, in nats: the mean of −log p."),
        Chart("KL divergence", ("kl",), "", "From the reference: the policy at the start of the run, as a rule."),
        Chart("KL of the update", ("approx_kl",), "", "From the policy as it was before the step's first update."),
        Chart("Clipped tokens", ("clip_fraction",), "share", "Share of tokens whose ratio was clipped."),
        Chart("Clipped, by side", ("clip/*",), "share", "Share of tokens clipped below and above."),
        Chart("Ratio", ("ratio/*",), "", "Probability under the trained policy over that under the sampling one."),
        Chart("Gradient norm", ("grad_norm",), "", "Before clipping."),
        Chart("Learning rate", ("learning_rate",)),
        Chart("Log-probability mismatch", ("logprob_mismatch/*",), "", "Between engine and trainer on trained tokens."),
        Chart("Groups without spread", ("groups/flat",), "share", "Groups that teach nothing: no gradient."),
    ),
    "Speed": (
        Chart("Tokens per second", ("speed/tokens_per_second",), "", "Sampled tokens over the time of the rollout."),
        Chart("Episodes per second", ("speed/episodes_per_second",)),
        Chart(
            "Time of a step by stage",
            ("time/rollout", "time/encode", "time/update", "time/weights", "time/step"),
            "seconds",
            "Seconds of a training step, stage by stage.",
            stacked=True,
        ),
        Chart("Time of an evaluation", ("time/eval",), "seconds", "Seconds of an evaluation."),
        Chart("Waiting in an episode", ("time/generate", "time/tools"), "seconds", "For engine and tools, on average."),
        Chart("Longest episode", ("time/longest",), "seconds", "Episodes overlap each other."),
        Chart("Other times", ("time/*",), "seconds", "Seconds; they may overlap."),
    ),
    "Rewards by source": (Chart("Rewards by source", ("reward/*",), "", "Means by source."),),
}
"""Sections of charts in the report's order."""

PARTS = {"Tools": "tools", "Length and end": "tools", "Update": "update", "Speed": "update", "Other metrics": "update"}
"""The part of the page that a section belongs to: `results`, where it isn't named here."""


def _matches(pattern: str, name: str) -> bool:
    """Whether a chart's pattern takes this metric."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def layout(names: Iterable[str]) -> list[tuple[str, list[tuple[Chart, list[str]]]]]:
    """The charts to draw for these metrics, by section: each metric in one chart, what no chart names by its prefix.
    Errors, intervals and the figures of an ablation stand in tables and tiles."""
    left = sorted(name for name in set(names) if not name.endswith(UNCERTAINTY) and not name.startswith("ablation/"))
    sections: list[tuple[str, list[tuple[Chart, list[str]]]]] = []
    for section, charts in CHARTS.items():
        drawn: list[tuple[Chart, list[str]]] = []
        for chart in charts:
            mine = [name for pattern in chart.metrics for name in left if _matches(pattern, name)]
            left = [name for name in left if name not in mine]
            if mine:
                drawn.append((chart, mine))
        if drawn:
            sections.append((section, drawn))
    by_prefix: dict[str, list[str]] = {}
    for name in left:
        by_prefix.setdefault(name.partition("/")[0] if "/" in name else "", []).append(name)
    others: list[tuple[Chart, list[str]]] = []
    for prefix, members in sorted(by_prefix.items()):
        if prefix and 1 < len(members) <= 8:
            others.append((Chart(prefix, tuple(members)), members))
        else:
            others += [(Chart(name, (name,)), [name]) for name in members]
    if others:
        sections.append(("Other metrics", others))
    return sections
