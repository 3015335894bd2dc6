"""Images in prompts: ids that differ by image, and the positions of image tokens.

Every image of a model has the same placeholder token, so two prompts with different pictures may have the same ids.
What the batch compares and caches are therefore marked ids: a negative number for each placeholder, made of the token
and the image's digest. The same picture in the prompts of a group is then found and computed once, and another picture
never passes for it. The model is given the plain ids.

Qwen-VL models count positions in three dimensions, an image's tokens by their place in the picture (M-RoPE). The model
itself says where the tokens of a prompt stand; what is sampled afterwards goes on in one line, a constant apart from
the columns of the cache.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toolrl.errors import EngineError
from toolrl.types import MediaInput

_TOKEN_BITS = 24
_TOKEN = (1 << _TOKEN_BITS) - 1
_PLAIN_TYPES = frozenset({"mm_token_type_ids"})
"""Numbers for each token that say no more than which tokens are an image's."""


def marked(prompt: Sequence[int], media: Sequence[MediaInput]) -> list[int]:
    """The prompt with each image's tokens marked. Raises EngineError for spans that don't lie in it, in order."""
    ids, before = list(prompt), 0
    for item in media:
        start, end = item.span
        if not before <= start < end <= len(ids):
            raise EngineError(f"an image stands at tokens {start} to {end} of a prompt of {len(ids)}")
        strange = set(item.token_types) - _PLAIN_TYPES
        if strange:
            raise EngineError(
                f"the model reads {', '.join(sorted(strange))}: tokens of an image see each other both ways, which the "
                "embedded engine doesn't do",
                hint="Use an engine that serves this model (engine: vllm).",
            )
        digest = int.from_bytes(hashlib.blake2b(item.key.encode(), digest_size=8).digest(), "big")
        ids[start:end] = [-((digest << _TOKEN_BITS) | token) - 1 for token in ids[start:end]]
        before = end
    return ids


def plain(token: int) -> int:
    """The token behind a marked or an ordinary id."""
    return token if token >= 0 else (-token - 1) & _TOKEN


@dataclass(frozen=True, slots=True)
class Pictures:
    """The images of one request's prompt."""

    media: tuple[MediaInput, ...] = ()
    rope_3T: Tensor | None = None
    """Positions of the prompt's tokens in three dimensions; None for a model that counts in one."""
    shift: int = 0
    """What a column has to be moved by to be the position of a token behind the prompt."""

    def within(self, start: int, end: int) -> list[MediaInput]:
        """The images whose tokens lie in [start, end), where nothing cuts one."""
        return [item for item in self.media if start <= item.span[0] < end]

    def cut(self, start: int, end: int) -> int:
        """Where a part from `start` that is to end near `end` cuts no image: before one, or behind the first."""
        for item in self.media:
            if item.span[0] < end < item.span[1]:
                return item.span[0] if item.span[0] > start else item.span[1]
        return end

    def positions(self, start: int, end: int) -> Tensor:
        """Positions `[3, end - start]` of the tokens of these columns."""
        if self.rope_3T is None:
            return torch.arange(start, end).expand(3, -1)
        prompt = self.rope_3T[:, start:end]
        behind = torch.arange(max(start, self.rope_3T.shape[1]), max(end, self.rope_3T.shape[1])) + self.shift
        return torch.cat([prompt, behind.expand(3, -1).to(prompt)], dim=1)


NONE = Pictures()


class ImageSupport:
    """A model's support of images."""

    def __init__(self, module: Any) -> None:
        inner = module.get_base_model() if hasattr(module, "get_base_model") else module
        self._takes = "pixel_values" in inspect.signature(inner.forward).parameters
        self._rope = getattr(inner.base_model, "get_rope_index", None)
        self.three = self._rope is not None
        """Positions have three dimensions where there are images."""
        config = module.config
        names = ("image_token_id", "video_token_id", "image_token_index", "video_token_index")
        ids = {getattr(config, name, None) for name in names} if self._takes else set()
        self.never_sampled = sorted(token for token in ids if isinstance(token, int) and token >= 0)
        """Placeholders: one that is sampled would have no image."""

    def locate(self, prompt: Sequence[int], media: Sequence[MediaInput]) -> Pictures:
        """The positions of the tokens of a prompt with images."""
        if not media:
            return NONE
        if not self._takes:
            raise EngineError(
                "the prompt holds images, and the model takes none", hint="Use a vision-language model (model.path)."
            )
        if self._rope is None:
            return Pictures(tuple(media))
        ids_1T = torch.tensor([list(prompt)])
        types_1T = torch.zeros_like(ids_1T)
        for item in media:
            start, end = item.span
            types_1T[0, start:end] = torch.tensor(item.token_types.get("mm_token_type_ids", (1,) * (end - start)))
        given = {
            "input_ids": ids_1T,
            "mm_token_type_ids": types_1T,
            "attention_mask": torch.ones_like(ids_1T),
            **arguments(media, "cpu"),
        }
        known = inspect.signature(self._rope).parameters
        rope_31T, shift = self._rope(**{name: value for name, value in given.items() if name in known})
        return Pictures(tuple(media), rope_31T[-3:, 0].long(), int(shift.reshape(-1)[0]))


def arguments(media: Iterable[MediaInput], device: torch.device | str) -> dict[str, Tensor]:
    """The tensors of images as arguments of the model."""
    gathered: dict[str, list[Tensor]] = {}
    for item in media:
        for name, value in item.tensors.items():
            gathered.setdefault(name, []).append(torch.as_tensor(value))
    return {name: torch.cat(values).to(device) for name, values in gathered.items()}
