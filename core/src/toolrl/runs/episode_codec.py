"""Episodes that a checkpoint keeps, because they can still be trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolrl.runs.records import episode_from_json, episode_to_json
from toolrl.types import Episode, Task


class StoredEpisodes:
    """Episodes as JSON values, without their tasks, which the data set gives again."""

    def write(self, episode: Episode) -> Mapping[str, Any] | None:
        """None for an episode with images: what the processor made of them is no JSON."""
        if episode.media:
            return None
        return episode_to_json(replace(episode, task=Task(episode.task.id, ())))

    def read(self, record: Mapping[str, Any]) -> Episode:
        """The episode, with a task that is its name only. Raises ValueError."""
        return episode_from_json(record)
