"""Changes of a model's config for a run, which checkpoints don't keep.

- No dropout and no dropped layers: the trainer's log-probabilities would differ from those that episodes were sampled
  with. A router's jitter stays as it is, since Phi-3.5-MoE uses it in eval mode as well; `modes` switches noise off.
- No router logits: the trainer has no auxiliary loss for the balance of experts, and computing one fails on an engine's
  masks.
- One set of a rotary embedding's factors for sequences of all lengths (`rotary`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from toolrl_plugin_torch.rotary import switch_length, with_one_set

logger = logging.getLogger(__name__)

_NOISE = ("dropout", "pdrop", "layerdrop", "drop_path", "droppath", "drop_rate")


class ConfigChanges:
    """What a run changes in a model's config, with the values that checkpoints get."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Any]] = {}
        """By the path of a part of the config ("" for the whole), the values of its fields."""

    @classmethod
    def make(cls, config: Any, longest: int | None = None) -> ConfigChanges:
        """Change a config in place. `longest`: most tokens of a sequence of the run; None if that isn't known, which
        leaves rotary embeddings as they are."""
        changes = cls()
        text = config.get_text_config()
        for path, part in _parts(config):
            new: dict[str, Any] = {}
            for name, value in part.to_dict().items():
                if isinstance(value, float) and value and any(word in name for word in _NOISE):
                    new[name] = 0.0
            if getattr(part, "output_router_logits", False):
                new["output_router_logits"] = False
            if part is text and longest is not None and (rope := _one_set(part, longest)) is not None:
                new["rope_parameters"] = rope
            changes._before[path] = {name: getattr(part, name) for name in new}
            for name, value in new.items():
                setattr(part, name, value)
        return changes

    @contextmanager
    def undone(self, config: Any) -> Iterator[None]:
        """Meanwhile the config, or a copy of it, has the values of before."""
        parts = dict(_parts(config))
        during = {path: {name: getattr(parts[path], name) for name in of} for path, of in self._before.items()}
        _set(parts, self._before)
        try:
            yield
        finally:
            _set(parts, during)


def _one_set(text: Any, longest: int) -> dict[str, Any] | None:
    limit = switch_length(text)
    reach = min(longest, int(getattr(text, "max_position_embeddings", 0) or longest))
    if limit is not None and reach > limit:
        logger.warning(
            "the model's rotary embedding (longrope) has factors for sequences up to %d tokens and others for longer "
            "ones; this run computes all with those for longer ones, as vLLM does with a max_model_len above %d, since "
            "a sequence may have %d tokens; rollout.max_episode_tokens: %d takes the other ones",
            limit, limit, reach, limit,
        )  # fmt: skip
    return with_one_set(text, reach)


def _parts(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A config and those inside of it, with their paths."""
    yield path, config
    for name in {**config.sub_configs, "text_config": None, "vision_config": None}:  # A remote class may list none.
        part = getattr(config, name, None)
        if hasattr(part, "to_dict"):
            yield from _parts(part, f"{path}.{name}" if path else name)


def _set(parts: dict[str, Any], values: dict[str, dict[str, Any]]) -> None:
    for path, of in values.items():
        for name, value in of.items():
            setattr(parts[path], name, value)
