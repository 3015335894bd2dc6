"""What chat formats, engines and the trainer exchange: token ids, and the images among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Span = tuple[int, int]
"""Half-open [start, end): of characters in a turn's text, or of tokens in a trajectory's ids, as the field says."""


def common_beginning(first: Sequence[int], second: Sequence[int], limit: int | None = None) -> int:
    """How many tokens two lists, or two tuples, have in common at the start, at most `limit`."""
    low, high = 0, min(len(first), len(second)) if limit is None else limit
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # first[:low] is common, first[:high] isn't
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True, eq=False)
class MediaInput:
    """An image as the model takes it: the tokens that stand for it, and its tensors. Compared by identity."""

    kind: Literal["image"]
    span: Span
    """Its placeholder tokens: of `Rendered.ids` as a chat format gives it, of `Trajectory.ids` in an episode."""
    key: str
    """A digest of its contents: equal images have equal keys."""
    tensors: Mapping[str, Any]
    """What the processor made of it (`pixel_values`, `image_grid_thw` …), by the name of the model's argument; those of
    several images are put together along the first dimension."""
    token_types: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Arguments with one number for each token of the span (`mm_token_type_ids`); 0 stands for all other tokens."""

    def moved(self, by: int) -> MediaInput:
        """The same in a longer sequence, so many tokens further on."""
        start, end = self.span
        return MediaInput(self.kind, (start + by, end + by), self.key, self.tensors, self.token_types)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one generation samples."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 for no limit."""
    min_p: float = 0.0
    """The least probability as a share of the likeliest token's; 0 for none."""
    keep_masks: bool = False
    """Record which tokens were left to draw from, and give log-probabilities under their softmax."""
    stop: tuple[str, ...] = ()
    """Generation ends with the token that completes one of these; that token is kept whole."""
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    """Seeds this generation alone, so that a sample doesn't depend on what else is in flight."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine sampled."""

    ids: tuple[int, ...]
    """Sampled ids; a stop token is the last of them."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each id under softmax(logits / temperature), before any truncation unless
    `Sampling.keep_masks`; where the temperature is 0, under softmax(logits)."""
    finish: Literal["stop", "length", "abort"]
    stopped_by: str | int | None = None
    """The stop string or the stop token id that ended it."""
    versions: tuple[int, ...] = ()
    """The weight version that sampled each id."""
    cached: int = 0
    """Prompt tokens that were served from a cache."""
    routes: bytes = b""
    """The experts of each token but the last, the prompt's too, as the trainer reads them; empty if not recorded."""
    sampling_masks: bytes = b""
    """The ids that each sampled one was drawn from, as `toolrl_plugin_torch.sampling_masks` writes them; empty without
    `Sampling.keep_masks`. Those of several generations may be joined."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Tokens that a chat format made."""

    ids: tuple[int, ...]
    media: tuple[MediaInput, ...] = ()
    """The images among the ids, in order, for the engine and the trainer."""
    in_thinking: bool = False
    """True where the ids end inside an opened thinking block."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A text with the way back to its tokens."""

    text: str
    offsets: tuple[int, ...]
    """`offsets[i]` is the character at which token i starts; one more entry holds len(text)."""
