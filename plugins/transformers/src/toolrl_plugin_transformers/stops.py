"""Find the token that completes a stop string, at the cost of one dictionary look-up a token.

A stop string may lie across tokens, and a token may hold part of a character, so the judge is the decoded text.
Decoding at each step would cost more than the step. So each token is asked once in its life whether a stop string
could end inside it; only where one could, the last few tokens are decoded and searched. Only sampled text counts,
never the prompt's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

_BROKEN = "\ufffd"
"""What a decoder writes for bytes that are not a whole character."""


class StopStrings:
    """A set of stop strings under one tokenizer. Stateless towards requests: shared by all that have the same set."""

    def __init__(self, stops: Sequence[str], tokenizer: Any) -> None:
        self.stops = tuple(stops)
        self._tokenizer = tokenizer
        self.could_end = cache(self._could_end)
        """Whether one of the stop strings could end inside this token."""
        # A token is at least one byte, so this many of the last tokens hold any stop string that ends now. The others
        # in front keep a broken character or a dropped leading space at the cut away from it.
        self._reach = max(len(stop.encode()) for stop in self.stops) + 4

    def find(self, sampled: Sequence[int]) -> str | None:
        """The stop string that the last of the sampled ids completes. Call where `could_end` is true of that one."""
        text = self._decode(sampled[-self._reach :])
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self.stops if stop in text]
        return min(found)[2] if found else None

    def _could_end(self, token: int) -> bool:
        piece = self._decode([token])
        # Some tokenizers drop the space in front of the first word of what they decode.
        return any(_ends_inside(stop, text) for stop in self.stops for text in (piece, " " + piece))

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def _ends_inside(stop: str, piece: str) -> bool:
    """Whether `stop` may end inside `piece`, given any text before it."""
    if stop in piece:
        return True
    if _BROKEN in piece and not stop.isascii():
        return True
    return any(stop.endswith(piece[:size]) for size in range(1, min(len(stop), len(piece)) + 1))
