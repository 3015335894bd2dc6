"""An episode as the page's script reads it: its row in the list, and the whole of it.

A row is a list of `COLUMNS`: what the list shows, filters and searches, and what siblings of a group are compared by.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from toolrl.runs.files import plain_float
from toolrl.runs.records import StoredEpisode, to_plain
from toolrl.types import CallError, CallRecord, Episode, EpisodeFailure, Message, Trajectory, Turn

TEXT_LIMIT = 20_000
"""Characters of one text at most; the middle is left out."""
SEARCH_LIMIT = 200_000
"""Characters of an episode that a search reads."""
_EXCERPT = 160
"""Characters of a question or an answer in a row."""

COLUMNS = (
    *("id", "group", "step", "kind", "environment", "reward", "advantage", "correct", "stop", "fault"),
    *("calls", "tools", "errors", "sampled", "tokens", "seconds", "question", "answer", "truth"),
)


def row(stored: StoredEpisode) -> list[Any]:
    """An episode's row, `advantage` None until `set_advantages` knows its siblings. `group` is empty where the id
    begins with it."""
    episode = stored.episode
    calls = episode.calls
    return [
        episode.id,
        "" if episode.id.rpartition("#")[0] == episode.group else episode.group,
        stored.step,
        stored.kind,
        episode.environment,
        _rounded(episode.reward),
        None,
        episode.correct,
        episode.stop_reason,
        episode.failure and _fault(episode.failure),
        len(calls),
        sorted({tool_name(record) for record in calls}),
        sorted({record.result.error for record in calls if record.result.error is not None}),
        episode.sampled_tokens,
        sum(len(trajectory.ids) for trajectory in episode.trajectories),
        round(episode.seconds, 2),
        _question(episode),
        episode.answer and episode.answer[:_EXCERPT],
        None if episode.task.answer is None else _text(to_plain(episode.task.answer))[:_EXCERPT],
    ]


def _fault(failure: EpisodeFailure) -> str:
    part = "" if failure.component == failure.fault else f" ({failure.component})"
    return f"{failure.fault}{part}: {failure.message[:_EXCERPT]}"


def said(episode: Episode) -> str:
    """All texts of an episode in one line, in lower case, as a search reads it: messages, what the model wrote, calls
    with their answers, and the failure."""
    parts: dict[str, None] = {}
    for trajectory in episode.trajectories:
        parts |= dict.fromkeys(message.content for message in trajectory.messages)
        for turn in trajectory.turns:
            parts |= dict.fromkeys(segment.text for segment in turn.segments)
            for record in turn.calls:
                arguments = record.call.raw if isinstance(record.call, CallError) else record.call.arguments
                parts |= dict.fromkeys((record.call.name or "", _text(to_plain(arguments)), record.result.text))
                parts[record.result.error or ""] = None
    if episode.failure is not None:
        parts |= dict.fromkeys((episode.failure.message, episode.failure.traceback))
    parts[episode.answer or ""] = None
    text = " ".join(" ".join(map(_short, parts)).split())
    return text[:SEARCH_LIMIT].lower()


def tool_name(record: CallRecord) -> str:
    """The tool that a call names; a model may write anything into a call that can't be read."""
    return "(unreadable)" if isinstance(record.call, CallError) else record.call.name


def _question(episode: Episode) -> str:
    asked = [message for message in episode.task.messages if message.content.strip()]
    users = [message for message in asked if message.role == "user"]
    return (users or asked)[-1].content[:_EXCERPT] if asked else ""


def set_advantages(rows: Sequence[list[Any]], config: Mapping[str, Any]) -> None:
    """Fill in the advantages of training rows, as far as their group alone gives them: the distance from the mean of
    the rewards, or of the others' rewards, over their standard deviation or 1. Groups that aren't whole, and runs with
    another baseline or scale, get none."""
    algorithm = config.get("algorithm")
    if not isinstance(algorithm, Mapping) or algorithm.get("advantage") is not None:
        return
    baseline, scale, size = (algorithm.get(name) for name in ("baseline", "scale", "group_size"))
    if baseline not in ("group_mean", "leave_one_out") or scale not in ("std", "none"):
        return
    groups: dict[tuple[Any, ...], list[list[Any]]] = {}
    for one in rows:
        if one[3] == "train":
            groups.setdefault((one[2], one[1] or one[0].rpartition("#")[0]), []).append(one)
    for group in groups.values():
        if len(group) == size:
            _compare([one for one in group if one[9] is None], baseline == "leave_one_out", scale == "std")


def _compare(group: Sequence[list[Any]], leave_one_out: bool, scaled: bool) -> None:
    rewards, count = [float(one[5]) for one in group], len(group)
    if not all(map(math.isfinite, rewards)):
        return
    mean = sum(rewards) / max(count, 1)
    flat = count < 2 or max(rewards) - min(rewards) <= 1e-9 * max(1.0, *map(abs, rewards))
    spread = 0.0 if flat else math.sqrt(sum((it - mean) ** 2 for it in rewards) / (count - 1))
    factor = 0.0 if flat else (count / (count - 1) if leave_one_out else 1.0) / (spread + 1e-4 if scaled else 1.0)
    for one, reward in zip(group, rewards, strict=True):
        one[6] = round((reward - mean) * factor, 4)


def _rounded(value: float) -> float | str:
    return plain_float(float(f"{value:.6g}"))


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
