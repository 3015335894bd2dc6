"""Runs the checks over the rollouts of a run, and keeps what they found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from toolrl_plugin_audit import group_checks, row_checks
from toolrl_plugin_audit.group_checks import Ages, Rewards, Tools
from toolrl_plugin_audit.rows import Row

EXAMPLES = 3
"""Of one problem at most."""

CHECKS = {
    "continuation": "Prompts continue the sampled tokens",
    "masks": "Masks train what the model sampled",
    "advantages": "Advantages fit tokens and rewards",
    "versions": "Weights are fresh enough",
    "tools": "Tools are called",
    "rewards": "Rewards vary",
    "truncation": "Truncated rollouts get no reward",
}

ADVICE = {
    "continuation": "Send the engine token ids, not messages that are tokenised again, and append to them. A chat "
    "template that drops reasoning or rewrites calls does the same: train each request as a sequence of its own.",
    "masks": "Set the mask to 1 on sampled tokens and 0 on all else. Text of tools in the loss teaches the model "
    "to make up answers of tools.",
    "advantages": "Multiply advantages by the mask, take the group's mean off its own rewards, and keep rewards and "
    "rollouts in one order.",
    "versions": "Lower the number of rollouts in flight, or discard rollouts that are too old. Another bound: "
    "--max-staleness N.",
    "tools": "Look at the prompt: are the tools in it, in the form that the model knows? Raise the temperature, start "
    "from demonstrations, or take the tool away.",
    "rewards": "A group with one reward for all teaches nothing. Look at what the reward function was given, and take "
    "tasks that are solved sometimes.",
    "truncation": "Give a rollout that was cut off no reward, or mask it: else the model learns not to end.",
}


@dataclass
class Finding:
    """One problem, in however many rollouts."""

    check: str
    problem: str
    count: int = 0
    examples: list[dict[str, str]] = field(default_factory=list)
    """`place` and `text` of the first few."""
    advice: str = ""


@dataclass
class CheckResult:
    """What a check looked at."""

    rows: int = 0
    not_run: str | None = None
    """Why it didn't run, or not on all rows."""


@dataclass
class Report:
    """An audit's result."""

    path: str
    format: str
    rows: int
    files: int
    checks: dict[str, CheckResult]
    findings: list[Finding]
    notes: list[str]


class Audit:
    """Takes rollouts one after another, and files as they end."""

    def __init__(self, max_staleness: int, *, guessed: bool = False) -> None:
        """`guessed`: the run may have allowed less than `max_staleness`."""
        self._rewards, self._tools, self._ages = Rewards(), Tools(), Ages()
        self._rows = self._files = 0
        self._guessed = guessed
        self._counts = dict.fromkeys(CHECKS, 0)
        self._unread: dict[str, Counter[str]] = {name: Counter() for name in CHECKS}
        self._found: dict[tuple[str, str], Finding] = {}
        self._by_row = row_checks.checks(max_staleness)

    def add(self, row: Row) -> None:
        """Check a rollout."""
        self._rows += 1
        for name, (applies, find) in self._by_row.items():
            if applies(row):
                self._counts[name] += 1
                for problem, example in dict(reversed(list(find(row)))).items():  # The first of each problem.
                    self._note(name, problem, row.place, example)
        for name, reason in (row.unread | row.broken).items():
            self._unread[name][reason] += 1
        for name, reason in row.broken.items() if row.compared else ():
            self._note(name, group_checks.NO_NUMBERS[name], row.place, reason)
        for of_run in (self._rewards, self._tools, self._ages):
            of_run.add(row)

    def end_file(self) -> None:
        """Close the groups of a file."""
        self._files += 1
        self._rewards.end_file()
        for found in self._rewards.take():
            self._note(*found)

    def _note(self, check: str, problem: str, place: str, example: str) -> None:
        finding = self._found.setdefault((check, problem), Finding(check, problem, advice=ADVICE[check]))
        finding.count += 1
        if len(finding.examples) < EXAMPLES:
            finding.examples.append({"place": place, "text": example})

    def finish(self, path: str, format_name: str, notes: Iterable[str] = ()) -> Report:
        """The result."""
        for found in self._rewards.finish():
            self._note(*found)
        for found_tools in self._tools.finish():
            self._note("tools", *found_tools)
        for found_ages in self._ages.finish() if self._guessed else ():
            self._note("versions", *found_ages)
        counts = self._counts | {
            "rewards": self._rewards.rows,
            "tools": self._tools.rows,
            "advantages": max(self._counts["advantages"], self._rewards.scored),
        }
        checks = {name: CheckResult(count, self._not_run(name, count)) for name, count in counts.items()}
        constant, total = self._rewards.constant_groups
        said = [f"{constant} of {total} groups have one reward for all their rollouts."] if constant else []
        order = list(CHECKS)
        findings = sorted(self._found.values(), key=lambda it: order.index(it.check))
        return Report(path, format_name, self._rows, self._files, checks, findings, [*said, *notes])

    def _not_run(self, name: str, count: int) -> str | None:
        """Why a check that looked at `count` rollouts didn't look at all of them."""
        if count >= self._rows:
            return None
        reasons = [f"{reason} ({number}×)" for reason, number in self._unread[name].most_common(EXAMPLES)]
        return ", ".join(reasons) or "the rollouts don't hold what it needs"
