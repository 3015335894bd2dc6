"""Warns, once in a run, of a prompt that is as long as an episode may be.

Such an episode ends before anything is sampled, as `context_full`, and in the metrics it is one more that was cut off.
Where all are like that a run finishes well and has learned nothing.
"""

from __future__ import annotations

import logging

from toolrl.types import Episode

_log = logging.getLogger(__name__)


class LongPrompts:
    """An observer of episodes."""

    def __init__(self, limit: int, *, of_model: bool) -> None:
        """`limit`: tokens of an episode at most; `of_model` where it is the model's context and not the config's."""
        self._limit = limit
        self._of_model = of_model
        self._warned = False

    def toolrl_episode_end(self, episode: Episode) -> None:
        if self._warned or episode.stop_reason != "context_full" or episode.turns:
            return
        self._warned = True
        limit = "the model can attend to" if self._of_model else "rollout.max_episode_tokens is"
        tokens = episode.main.prompt_length  # 0 of a harness's question: what doesn't fit isn't kept.
        enough = max(tokens, self._limit)
        remedy = "" if self._of_model else f"set rollout.max_episode_tokens well above {enough}, "
        _log.warning(
            "task %r: its prompt has %s tokens, tools and system prompt included, and %s %d: such an episode ends at "
            "once as context_full, without a token sampled; %sshorten the prompt or leave such tasks out (said once)",
            episode.task.id,
            tokens or "too many",
            limit,
            self._limit,
            remedy,
        )
