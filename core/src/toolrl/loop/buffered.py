"""Finished groups that can still be trained on, and their form in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from toolrl.loop.data import EndlessOrder
from toolrl.types import Episode, Group, Task


class EpisodeCodec(Protocol):
    """Turns episodes into JSON values and back."""

    def write(self, episode: Episode) -> Mapping[str, Any] | None:
        """None for one that JSON can't hold exactly, as far as training goes."""
        ...

    def read(self, record: Mapping[str, Any]) -> Episode:
        """The episode; its task need not be whole. Raises ValueError."""
        ...


@dataclass
class BufferedGroup:
    """A group that is finished."""

    row: int
    """Of the data."""
    version: int
    """Of the weights when it was started: none of its tokens is older."""
    uses: int
    """Steps that trained on it."""
    group: Group = field(repr=False)


def written(it: BufferedGroup, codec: EpisodeCodec) -> Mapping[str, Any] | None:
    """As JSON values, without its task, which the data gives again. None where an episode can't be written exactly."""
    episodes = [codec.write(episode) for episode in it.group.episodes]
    if any(episode is None for episode in episodes):
        return None
    return {"row": it.row, "version": it.version, "uses": it.uses, "group": it.group.id, "episodes": episodes}


def read(record: Mapping[str, Any], order: EndlessOrder[Task], codec: EpisodeCodec) -> BufferedGroup | None:
    """What `written` was given. None where the data has another task in this row by now."""
    (task,) = order.take(record["row"], 1)
    found = [codec.read(episode) for episode in record["episodes"]]
    if any(episode.task.id != task.id for episode in found):
        return None
    episodes = tuple(replace(episode, task=task) for episode in found)
    return BufferedGroup(record["row"], record["version"], record["uses"], Group(record["group"], task, episodes))
