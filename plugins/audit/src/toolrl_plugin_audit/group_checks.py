"""Checks that compare the rollouts of a group, and the groups of a run.

A group's rollouts stand in one file: what a group needs is dropped when its file ends, so a run of any size fits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from toolrl_plugin_audit.rows import MENTIONED, Row

Found = Iterator[tuple[str, str, str]]
"""Problem, place, example."""

CONSTANT = "the reward is the same in every group"
NOT_FINITE = "rewards are no finite numbers"
NOT_ZERO = "the advantages of a group don't add up to zero"
WRONG_SIGN = "the better rollouts of a group got the negative advantages"
ALL_ZERO = "the rewards of a group differ, and all its advantages are zero"
NO_NUMBER = "advantages are no finite numbers"
NO_NUMBERS = {"rewards": NOT_FINITE, "advantages": NO_NUMBER}
OUTLIER = "rollouts are older than nearly all others"
NEVER = "tools were offered and never called"
ONE_NEVER = "a tool is never called, while others are"

FEW_ROWS = 4
"""Below, nothing is said of what never happens."""
MANY_ROWS = 32
"""From here on, one idle tool among busy ones is worth a word."""


@dataclass(slots=True)
class _Member:
    place: str
    reward: float | None
    parts: tuple[float | None, ...]
    advantage: float | None


@dataclass
class Rewards:
    """The rewards of a run, and the advantages that were made of them."""

    rows: int = 0
    compared: int = 0
    """Rollouts in groups of several."""
    scored: int = 0
    """Of these, with an advantage."""
    _groups: dict[Hashable, list[_Member]] = field(default_factory=dict)
    _constant: Counter[float | None] = field(default_factory=Counter)
    """How many groups had one reward for all, by that reward."""
    _total: int = 0
    _first: str = ""
    _range: tuple[float, float] = (math.inf, -math.inf)
    _found: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Note a rollout."""
        if not row.compared or (row.reward is None and not row.rewards):
            return
        self.rows += 1
        self._first = self._first or row.place
        if row.reward is not None and not math.isfinite(row.reward):
            self._say("rewards", NOT_FINITE, row.place, f"reward {row.reward}")
            return
        if row.reward is not None:
            self._range = (min(self._range[0], row.reward), max(self._range[1], row.reward))
        if row.advantage is not None and not math.isfinite(row.advantage):
            self._say("advantages", NO_NUMBER, row.place, f"advantage {row.advantage}")
            return
        parts = tuple(row.rewards.values()) or (row.reward,)
        if row.group is not None:
            self._groups.setdefault((row.step, row.group), []).append(
                _Member(row.place, row.reward, parts, row.advantage)
            )

    def end_file(self) -> None:
        """Check the groups of a file and forget them."""
        groups, self._groups = [group for group in self._groups.values() if len(group) > 1], {}
        if not groups:
            return
        # A group of another size lost members, to a filter or to a log's bound: its mean says nothing.
        size = Counter(map(len, groups)).most_common(1)[0][0]
        for group in groups:
            self.compared += len(group)
            advantages = [it.advantage for it in group if it.advantage is not None]
            if len(advantages) == len(group) and len(group) % size == 0:
                self.scored += len(group)
                for problem, place, example in _advantages(group, advantages):
                    self._say("advantages", problem, place, example)
        for group in groups:
            self._total += 1
            if len({it.reward for it in group}) == 1:
                self._constant[group[0].reward] += 1

    def _say(self, check: str, problem: str, place: str, example: str) -> None:
        self._found.append((check, problem, place, example))

    @property
    def constant_groups(self) -> tuple[int, int]:
        """Groups with one reward for all, and all groups."""
        return sum(self._constant.values()), self._total

    def take(self) -> list[tuple[str, str, str, str]]:
        """What was found since the last call: check, problem, place, example."""
        found, self._found = self._found, []
        return found

    def finish(self) -> list[tuple[str, str, str, str]]:
        """What only the whole run shows."""
        constant, total = self.constant_groups
        low, high = self._range
        alone = not total and self.rows >= 2 * FEW_ROWS and low == high  # Without groups: one reward for all.
        if alone or (total and self.compared >= FEW_ROWS and constant == total):
            shown = f"{self.rows} rollouts have the reward {low:g}"
            if low != high and total:
                value = self._constant.most_common(1)[0]
                shown = f"{constant} of {total} groups, {value[1]} of them with {_shown((value[0],))}"
            self._say("rewards", CONSTANT, self._first, shown)
        return self.take()


def _shown(parts: tuple[float | None, ...]) -> str:
    return "the reward " + " and ".join("none" if it is None else f"{it:g}" for it in parts)


def _advantages(group: list[_Member], advantages: list[float]) -> Found:
    largest = max(map(abs, advantages))
    mean = sum(advantages) / len(advantages)
    if abs(mean) > 0.01 * largest + 1e-4:
        listed = ", ".join(f"{it:.3g}" for it in advantages[:8])
        yield NOT_ZERO, group[0].place, f"their mean is {mean:.3g}: {listed}{', …' if len(advantages) > 8 else ''}"
    vectors = {it.parts for it in group}
    if len(vectors) > 1 and largest == 0 and len(group[0].parts) == 1:
        yield ALL_ZERO, group[0].place, f"rewards {', '.join(_shown(it.parts)[11:] for it in group[:8])}"
    yield from _signs(group)


def _signs(group: list[_Member]) -> Found:
    for better in group:
        for worse in group:
            # As parts may have any weight, only one that is at least as good in all of them is better for sure.
            pairs = list(zip(better.parts, worse.parts, strict=False))
            if any(a is None or b is None or a < b for a, b in pairs) or better.parts == worse.parts:
                continue
            if (better.advantage or 0) < -1e-6 and (worse.advantage or 0) > 1e-6:
                yield (
                    WRONG_SIGN,
                    better.place,
                    f"{_shown(better.parts)} got {better.advantage:.3g}, "
                    f"{_shown(worse.parts)[4:]} got {worse.advantage:.3g} ({worse.place})",
                )
                return


@dataclass
class Ages:
    """The ages of a run whose bound isn't known: where nearly all are of one age, an older one stands out."""

    _counts: Counter[int] = field(default_factory=Counter)
    _first: dict[int, list[str]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Note a rollout."""
        if row.age is not None:
            self._counts[row.age] += 1
            self._first.setdefault(row.age, []).append(row.place)
            del self._first[row.age][FEW_ROWS:]

    def finish(self) -> Found:
        """The rollouts that stand out."""
        total = self._counts.total()
        usual, count = self._counts.most_common(1)[0] if total else (0, 0)
        for age, places in sorted(self._first.items()):
            if total >= 2 * FEW_ROWS and count >= 0.85 * total and usual + 2 < age:
                for place in places:
                    yield (
                        OUTLIER,
                        place,
                        f"sampled {age} versions before its step; {count} of {total} rollouts are {usual} old",
                    )


@dataclass
class Tools:
    """Which tools were offered, and which were called."""

    rows: int = 0
    _all: int = 0
    _offered: Counter[tuple[str, ...]] = field(default_factory=Counter)
    _called: Counter[str] = field(default_factory=Counter)
    _answering: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Rollouts with calls, by the tools that were offered."""
    _places: dict[tuple[str, ...], str] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Note a rollout."""
        self._all += 1
        if not row.tools or row.calls is None:
            return
        self.rows += 1
        self._offered[row.tools] += 1
        self._places.setdefault(row.tools, row.place)
        self._answering[row.tools] += bool(row.calls)
        self._called.update(filter(None, row.calls))

    def finish(self) -> Found:
        """The tools that nobody called."""
        idle: Counter[str] = Counter()
        for tools, count in self._offered.items():
            named = "tools" if tools == MENTIONED else ", ".join(filter(None, tools)) or "tools"
            if tools == MENTIONED and count < 0.9 * self._all:
                continue  # Some tasks speak of tools that nobody offered.
            if not self._answering[tools] and count >= FEW_ROWS:
                yield NEVER, self._places[tools], f"{named}: no call in {count} rollouts"
                continue
            for name in filter(None, tools if tools != MENTIONED else ()):
                idle[name] += 0 if self._called[name] else count
        for name, count in idle.items():
            if count >= MANY_ROWS and self._called.total():
                yield ONE_NEVER, "all files", f"{name}: no call in {count} rollouts that were offered it"
