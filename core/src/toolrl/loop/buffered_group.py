"""A finished group that can still be trained on, and its record in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolrl.loop.data import EndlessOrder
from toolrl.runs.records import episode_from_json, episode_to_json
from toolrl.types import Group, Task


@dataclass
class BufferedGroup:
    """A finished group and how often it was trained on."""

    row: int
    """Of the data."""
    version: int
    """Of the weights when it was started: none of its tokens is older."""
    uses: int
    """Steps that trained on it."""
    group: Group = field(repr=False)


def to_record(it: BufferedGroup) -> Mapping[str, Any] | None:
    """A group as JSON values, without its task, which the data set gives again. None for one with images: the
    processor's tensors are no JSON."""
    if any(episode.media for episode in it.group.episodes):
        return None
    episodes = [episode_to_json(replace(episode, task=Task(episode.task.id, ()))) for episode in it.group.episodes]
    return {"row": it.row, "version": it.version, "uses": it.uses, "group": it.group.id, "episodes": episodes}


def from_record(record: Mapping[str, Any], order: EndlessOrder[Task]) -> BufferedGroup | None:
    """The group again. None where the data has another task in this row by now."""
    (task,) = order.take(record["row"], 1)
    found = [episode_from_json(episode) for episode in record["episodes"]]
    if any(episode.task.id != task.id for episode in found):
        return None
    episodes = tuple(replace(episode, task=task) for episode in found)
    return BufferedGroup(record["row"], record["version"], record["uses"], Group(record["group"], task, episodes))
