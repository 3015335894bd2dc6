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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, zip_longest
from typing import Any

from toolrl.errors import DataError
from toolrl.runs.episodes import EpisodeFile
from toolrl.runs.files import plain_float
from toolrl.runs.folder import RunFolder
from toolrl.runs.records import StoredEpisode, to_plain
from toolrl.types import CallRecord, Episode, Message, Trajectory, Turn

_log = logging.getLogger(__name__)

READ_BYTES = 32 << 20
"""Of files as they lie on the disk."""
PER_FILE = 64
"""Episodes of one file at most."""
TEXT_LIMIT = 20_000
"""Characters of one text at most; the middle is left out."""


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
            counts = self.tools.setdefault(record.call.name or "(unnamed)", Counter())
            counts["calls"] += 1
            counts["milliseconds"] += round(record.seconds * 1000)
            if record.result.error is not None:
                counts["error:" + record.result.error] += 1


@dataclass
class EpisodeSample:
    """A page's share of a run's episodes."""

    items: list[str]
    """Episodes as JSON texts, by `script_json`."""
    total: int
    """Episodes that the run stored."""
    totals: Totals
    token_ids: set[int]


def sample_episodes(folder: RunFolder, *, page_bytes: int) -> EpisodeSample:
    """Choose episodes whose JSON texts together stay under `page_bytes`. A file that can't be read is left out, with a
    warning."""
    totals, token_ids, unfinished = Totals(), set[int](), 0
    chosen: list[tuple[float, str, int, str]] = []
    per_file = []
    for file in _within_budget(_by_interest(folder.episode_store.files())):
        stored = _readable(file)
        unfinished += len(stored) if file.step is None else 0
        for one in stored:
            totals.add(one.episode)
        per_file.append(_by_interest_in_file(stored)[:PER_FILE])
    left = page_bytes
    for one in chain.from_iterable(zip_longest(*per_file)):  # One of each file in turn.
        if one is None:
            continue
        text = script_json(view(one))
        size = len(text.encode("utf-8"))
        if size > left:
            continue
        left -= size
        chosen.append((one.step if one.step is not None else float("inf"), one.kind or "", len(chosen), text))
        token_ids.update(*(trajectory.ids for trajectory in one.episode.trajectories))
    known = sum(line.episodes for line in folder.metrics_lines())
    chosen.sort(key=lambda item: item[:3])
    total = max(known + unfinished, totals.episodes)
    return EpisodeSample([text for *_, text in chosen], total, totals, token_ids)


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
    first = [*failed[:2], *reversed(ranked[-2:]), *ranked[:2]]
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


def view(stored: StoredEpisode) -> dict[str, Any]:
    """An episode as the page's script reads it."""
    episode = stored.episode
    return {
        "step": stored.step,
        "kind": stored.kind,
        "id": episode.id,
        "group": episode.group,
        "environment": episode.environment,
        "reward": plain_float(episode.reward),
        "correct": episode.correct,
        "stop": episode.stop_reason,
        "answer": episode.answer,
        "truth": None if episode.task.answer is None else _short(_text(to_plain(episode.task.answer))),
        "seconds": round(episode.seconds, 3),
        "temperature": episode.temperature,
        "rewards": [[it.turn, it.source, plain_float(it.value), it.weight, it.role] for it in episode.rewards],
        "failure": episode.failure
        and [
            episode.failure.fault,
            episode.failure.component,
            episode.failure.message,
            _short(episode.failure.traceback),
        ],
        "trajectories": [_trajectory(trajectory) for trajectory in episode.trajectories],
    }


def _trajectory(trajectory: Trajectory) -> dict[str, Any]:
    prompt, replies = _conversation(trajectory)
    spans = _spans(trajectory.loss_mask)
    return {
        "role": trajectory.role,
        "trained": trajectory.trained,
        "prompt": [_message(message) for message in prompt],
        "turns": [_turn(turn, replies.get(number, [])) for number, turn in enumerate(trajectory.turns)],
        "promptLength": trajectory.prompt_length,
        "ids": list(trajectory.ids),
        "spans": spans,
        "logprobs": [_logprob(value) for start, end in spans for value in trajectory.logprobs[start:end]],
        "versions": sorted({version for version in trajectory.weight_versions if version >= 0}),
    }


def _conversation(trajectory: Trajectory) -> tuple[list[Message], dict[int, list[Message]]]:
    """The messages before the first turn, and by the turn's place those that an environment answered it with."""
    prompt: list[Message] = []
    replies: dict[int, list[Message]] = {}
    own = sum(message.role == "assistant" for message in trajectory.messages) - len(trajectory.turns)
    turn = -1 - max(own, 0)
    for message in trajectory.messages:
        turn += message.role == "assistant"
        if turn < 0:
            prompt.append(message)
        elif message.role not in ("assistant", "tool"):
            replies.setdefault(turn, []).append(message)
    return prompt, replies


def _turn(turn: Turn, replies: Sequence[Message]) -> dict[str, Any]:
    return {
        "index": turn.index,
        "segments": [[part.origin, _short(part.text), part.tokens[1] - part.tokens[0]] for part in turn.segments],
        "calls": [_call(record) for record in turn.calls],
        "finish": turn.finish,
        "generate": round(turn.generate_seconds, 3),
        "tools": round(turn.tool_seconds, 3),
        "replies": [_message(message) for message in replies],
    }


def _call(record: CallRecord) -> dict[str, Any]:
    arguments = getattr(record.call, "arguments", None)
    result = record.result
    return {
        "name": record.call.name,
        "arguments": _short(record.call.raw if arguments is None else _text(to_plain(arguments))),
        "unread": None if arguments is not None else getattr(record.call, "kind", ""),
        "result": _short(result.text),
        "media": len(result.media),
        "error": result.error,
        "truncated": result.truncated,
        "done": result.done,
        "reward": None if result.reward is None else plain_float(result.reward),
        "started": round(record.started, 3),
        "seconds": round(record.seconds, 4),
    }


def _message(message: Message) -> list[str]:
    media = "".join(f"[{item.kind}] " for item in message.media)
    return [message.role, media + _short(message.content)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _short(text: str) -> str:
    if len(text) <= TEXT_LIMIT:
        return text
    half = TEXT_LIMIT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _logprob(value: float) -> float | str:
    return plain_float(float(f"{value:.3g}"))


def _spans(mask: Sequence[int]) -> list[list[int]]:
    """Runs of ones as [start, end)."""
    spans, at = [], 0
    for bit, run in groupby(mask):
        start, at = at, at + len(list(run))
        if bit:
            spans.append([start, at])
    return spans
