"""Chooses the episodes that a report shows, and turns them into the page's data.

A run may hold gigabytes of episodes and a report some megabytes. Files of episodes are read from the ends of the run
inwards until a reading budget is spent: the last evaluation and training step, the step that didn't end, the first
ones, then steps spread evenly between them. Of each file come failed, best and worst episodes and then whole groups;
the page's budget is dealt out over the files in turn.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from toolrl.errors import DataError
from toolrl.runs.episodes import EpisodeFile
from toolrl.runs.files import plain_float
from toolrl.runs.folder import RunFolder
from toolrl.runs.records import StoredEpisode
from toolrl.types import Episode
from toolrl_plugin_report.view import row, set_advantages, tool_name, view

_log = logging.getLogger(__name__)

READ_BYTES = 32 << 20
"""Of files as they lie on the disk."""
PER_PAGE = 2048
"""Episodes that few files may give together; of many files each gives 64 at most."""


@dataclass
class Totals:
    """Sums over the episodes that were read."""

    episodes: int = 0
    rewards: dict[tuple[str, int | None], list[float]] = field(default_factory=dict)
    """(source, turn) to [count, sum of weight · value]."""
    tools: dict[str, Counter[str]] = field(default_factory=dict)
    """Tool to `calls`, `milliseconds` and one count for each kind of error."""

    def add(self, episode: Episode) -> None:
        self.episodes += 1
        for entry in episode.rewards:
            cell = self.rewards.setdefault((entry.source, entry.turn), [0.0, 0.0])
            cell[0] += 1
            cell[1] += entry.weight * entry.value
        for record in episode.calls:
            counts = self.tools.setdefault(tool_name(record), Counter())
            counts["calls"] += 1
            counts["milliseconds"] += round(record.seconds * 1000)
            if record.result.error is not None:
                counts["error:" + record.result.error] += 1

    def merge(self, other: Totals) -> None:
        """Add the sums of other episodes."""
        self.episodes += other.episodes
        for key, (count, value) in other.rewards.items():
            cell = self.rewards.setdefault(key, [0.0, 0.0])
            cell[0] += count
            cell[1] += value
        for name, counts in other.tools.items():
            self.tools.setdefault(name, Counter()).update(counts)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        rewards = [[*key, count, plain_float(value)] for key, (count, value) in self.rewards.items()]
        return {"episodes": self.episodes, "rewards": rewards, "tools": self.tools}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Totals:
        """From `to_json`. Raises KeyError, TypeError, ValueError."""
        rewards = {(str(source), turn): [count, float(value)] for source, turn, count, value in record["rewards"]}
        return cls(record["episodes"], rewards, {name: Counter(counts) for name, counts in record["tools"].items()})


@dataclass
class EpisodeSample:
    """A page's share of a run's episodes."""

    rows: list[list[Any]]
    items: list[str]
    """Episodes as JSON texts, by `script_json`; `rows` are theirs."""
    total: int
    """Episodes that the run stored."""
    totals: Totals
    token_ids: set[int]


def sample_episodes(folder: RunFolder, *, page_bytes: int) -> EpisodeSample:
    """Choose episodes whose JSON texts together stay under `page_bytes`. A file that can't be read is left out, with a
    warning."""
    totals, token_ids, unfinished = Totals(), set[int](), 0
    chosen: list[tuple[float, str, int, list[Any], str]] = []
    per_file = []
    files = folder.episode_store.files()
    most = max(64, PER_PAGE // max(len(files), 1))
    for file in _within_budget(_by_interest(files)):
        stored = _readable(file)
        unfinished += len(stored) if file.step is None else 0
        for one in stored:
            totals.add(one.episode)
        rows = {id(one): row(one) for one in stored}
        set_advantages(list(rows.values()), folder.config)
        per_file.append([(one, rows[id(one)]) for one in _by_interest_in_file(stored)[:most]])
    left = page_bytes
    for both in chain.from_iterable(zip_longest(*per_file)):  # One of each file in turn.
        if both is None:
            continue
        one, its_row = both
        text = script_json(view(one))
        size = len(text.encode("utf-8"))
        if size > left:
            continue
        left -= size
        chosen.append((one.step if one.step is not None else float("inf"), one.kind or "", len(chosen), its_row, text))
        token_ids.update(*(trajectory.ids for trajectory in one.episode.trajectories))
    known = sum(line.episodes for line in folder.metrics_lines())
    chosen.sort(key=lambda item: item[:3])
    total = max(known + unfinished, totals.episodes)
    return EpisodeSample([it[3] for it in chosen], [it[4] for it in chosen], total, totals, token_ids)


def _readable(file: EpisodeFile) -> list[StoredEpisode]:
    """A file's episodes, none where it can't be read: a report of the others is better than none."""
    try:
        return list(file.episodes())
    except DataError as error:
        _log.warning("left out of the report: %s", error)
        return []


def _by_interest(files: Sequence[EpisodeFile]) -> list[EpisodeFile]:
    """Both ends of each kind first, then the middles of the gaps, widest first."""
    order: list[EpisodeFile] = [file for file in files if file.step is None]
    queues = []
    for kind in ("eval", "train", *sorted({file.kind or "" for file in files} - {"eval", "train", ""})):
        of_kind = [file for file in files if file.kind == kind]
        queues.append([of_kind[index] for index in _spread(of_kind)])
    return order + [file for row in zip_longest(*queues) for file in row if file is not None]


def _spread(items: Sequence[Any]) -> list[int]:
    """Indices: the last, the first, then evenly between them, ever finer: by their binary digits read backwards."""
    last = len(items) - 1
    digits = last.bit_length()
    return sorted(range(len(items)), key=lambda index: (index != last, int(f"{index:0{digits}b}"[::-1], 2)))


def _within_budget(files: Iterable[EpisodeFile]) -> Iterator[EpisodeFile]:
    left = READ_BYTES
    for file in files:
        yield file  # the first is read whatever its size
        left -= file.path.stat().st_size
        if left <= 0:
            return


def _by_interest_in_file(stored: Sequence[StoredEpisode]) -> list[StoredEpisode]:
    failed = [one for one in stored if one.episode.failure is not None]
    ranked = sorted(stored, key=lambda one: one.episode.reward)
    grouped = sorted(stored, key=lambda one: (one.episode.group, one.episode.index))
    first = [*failed[:8], *reversed(ranked[-2:]), *ranked[:2]]
    return list({id(one): one for one in (*first, *grouped)}.values())


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or open another."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return whole_characters(text)


def whole_characters(text: str) -> str:
    """A text with a question mark for each half of a surrogate pair, which no page can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
