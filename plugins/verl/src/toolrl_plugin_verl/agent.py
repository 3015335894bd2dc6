"""Stand-in for verl's `AgentData`: what `execute(…, agent_data=…)` may read and write of its episode."""

from __future__ import annotations

import copy
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from toolrl.errors import ToolsetError
from toolrl.protocols import EpisodeContext
from toolrl.rollouts.notes import plain_notes
from toolrl.types import Media
from toolrl_common.images import load_image

EXTRA_FIELDS = "extra_fields"
"""The key of `Episode.notes` that holds them."""
REWARD_SCORES = "rollout_reward_scores"
"""The key that holds what each tool's calc_reward gave, by the tool's name."""
_SHARED = "verl_agent_data"
_log = logging.getLogger(__name__)
_warned: set[str] = set()


@dataclass
class AgentData:
    """One for each episode, shared by its tools; gone when the episode ends."""

    request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """The instance_id that the episode's tools get, too."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The task's messages, before the first turn."""
    tools_kwargs: dict[str, Any] = field(default_factory=dict)
    """Of the task."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """For the tools' own use."""
    tool_rewards: list[float] = field(default_factory=list)
    """What `execute` gave so far."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """State from one call to the next; other tools of the episode see it, and the reward function in `extra_info`."""
    turn_scores: list[float] = field(default_factory=list)
    """Empty: in verl an interaction fills it."""
    media: tuple[Media, ...] = ()
    """Of the task's messages, and of what tools answered."""

    @cached_property
    def image_data(self) -> list[Any]:
        """The task's images and those that tools answered so far, as PIL images. Raises ChatFormatError for one that
        can't be read."""
        return [load_image(item.data, "agent_data.image_data") for item in self.media if item.kind == "image"]

    @cached_property
    def video_data(self) -> list[Any]:
        """The videos of the task's messages, as the data set gives them."""
        return [item.data for item in self.media if item.kind == "video"]

    def answered(self, media: Sequence[Media]) -> None:
        """Take in the images of a tool's answer."""
        images = tuple(item for item in media if item.kind == "image")
        self.media += images
        if "image_data" in vars(self):
            self.image_data.extend(load_image(item.data, "agent_data.image_data") for item in images)

    def hand_on(self, episode: EpisodeContext, hide: Callable[[str], str]) -> None:
        """Note `extra_fields` for the reward function and the record. Warns of what JSON can't hold."""
        for key, value in list(self.extra_fields.items()):
            try:
                noted = plain_notes({key: value}, hide)
                episode.notes.setdefault(EXTRA_FIELDS, {}).update(noted)
            except ToolsetError:
                if str(key) not in _warned:
                    _warned.add(str(key))
                    kind = type(value).__name__
                    _log.warning("agent_data.extra_fields[%r] is %s and doesn't reach the reward", key, kind)


def agent_data_of(episode: EpisodeContext) -> AgentData:
    """The episode's, made when it is first asked for."""
    task, found = episode.task, episode.shared.get(_SHARED)
    if not isinstance(found, AgentData):
        found = episode.shared[_SHARED] = AgentData(
            messages=[{"role": message.role, "content": message.content} for message in task.messages],
            media=tuple(item for message in task.messages for item in message.media),
            tools_kwargs=copy.deepcopy({tool: dict(stages) for tool, stages in task.tools_kwargs.items()}),
        )
    return found
