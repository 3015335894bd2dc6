"""Texts that are encoded again and again, encoded once.

A tokenizer splits a text at its added tokens before all else, and encodes what stands between two of them by itself.
What follows a turn is mostly made of such pieces, which are the same each time (`<|im_end|>`, a line break,
`<|im_start|>`, `user` …): only the piece that holds a tool's answer is new. So the pieces that a template writes are
kept with their ids, and the tokenizer is asked for the others alone.

That holds for tokenizers whose added tokens take nothing of what stands beside them and are found before the text is
normalized, and that put nothing before the first word of a text which they don't put behind an added token. Others are
told by their settings and by trying.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from toolrl.chat.control import alternatives

_TRIALS = ("x", " x", "x ", "\n", "\nx", "user\n", "\n12 é\n", "  \n x", "▁x", ".")
_MOST_TRIED = 16
"""Added tokens with which it is tried; they differ in nothing but their letters."""
_MOST_KEPT = 1_000_000
"""Characters of all pieces together."""
_SHORTEST = 200
"""Characters of a piece of a prompt that is worth keeping: instructions and tools are longer, questions mostly not."""
_MOST_MET = 65_536
Encode = Callable[[str], list[int]]


class FixedPieces:
    """Encodes texts by their pieces."""

    def __init__(self, tokens: Sequence[Any], ids: dict[str, int], encode: Encode) -> None:
        """`tokens` are the tokenizer's added tokens, `ids` theirs by content, `encode` its encoding of a whole text."""
        self._encode = encode
        self._known: dict[str, Sequence[int]] = {}
        """The ids of pieces, those of the added tokens among them: none of these stands within another piece."""
        self._kept = 0
        self._met: set[int] = set()
        """Hashes of pieces of prompts: two that differ and share one cost an encoding and no more."""
        self._pattern: re.Pattern[str] | None = None
        early = [token for token in tokens if token.content and not token.normalized]
        if early and not any(token.lstrip or token.rstrip or token.single_word for token in early):
            self._added = {token.content: ids[token.content] for token in early}
            # In a group of their own, so that `split` gives them, too.
            self._pattern = re.compile(f"({alternatives(self._added)})")
            self._known = {"": (), **{content: (token_id,) for content, token_id in self._added.items()}}
            if not self._holds():
                self._pattern = None

    def learn(self, text: str) -> None:
        """Keep the pieces between the added tokens of a text which a template writes."""
        if self._pattern is not None:
            self._keep(self._pattern.split(text)[::2], text)

    def learn_what_returns(self, text: str) -> None:
        """Keep those pieces of a prompt that were seen in one before."""
        if self._pattern is None:
            return
        pieces = [
            piece for piece in self._pattern.split(text)[::2] if len(piece) >= _SHORTEST and piece not in self._known
        ]
        marks = [hash(piece) for piece in pieces]
        again = [piece for piece, mark in zip(pieces, marks, strict=True) if mark in self._met]
        if len(self._met) > _MOST_MET:
            self._met.clear()
        self._met.update(marks)
        if again:
            self._keep(again, text)

    def _keep(self, pieces: Sequence[str], text: str) -> None:
        before = self._kept
        for piece in pieces:
            if piece and self._kept + len(piece) <= _MOST_KEPT and piece not in self._known:
                self._kept += len(piece)
                self._known[piece] = tuple(self._encode(piece))
        if self._kept > before and self(text) != self._encode(text):
            self._pattern = None

    def __call__(self, text: str) -> list[int] | None:
        """The ids of a whole text; None where this tokenizer has to see all of it."""
        if self._pattern is None or not self._kept:
            return None
        found: list[int] = []
        known = self._known
        for piece in self._pattern.split(text):
            ids = known.get(piece)
            found += self._encode(piece) if ids is None else ids
        return found

    def _holds(self) -> bool:
        """Whether pieces give by themselves what they give behind an added token, and before one."""
        for content, token_id in list(self._added.items())[:_MOST_TRIED]:
            for trial in _TRIALS:
                alone = self._encode(trial)
                if self._encode(content + trial + content + trial) != [token_id, *alone, token_id, *alone]:
                    return False
        return True
