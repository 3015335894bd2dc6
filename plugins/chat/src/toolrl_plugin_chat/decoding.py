"""Ids to text, once, with the character at which each token starts.

Most tokenizers spell a token as bytes: byte-level ones through GPT-2's table of 256 characters, SentencePiece ones as
text with `▁` for a blank and `<0x0A>` for a byte. Where one of these spellings reproduces the tokenizer's own
decoding of a probe, ids are decoded by joining bytes. Else a sliding window of the tokenizer's own decoding does it.
Both take time linear in the number of tokens. A token may hold a part of a character only: it starts at the character
that holds its first byte.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from toolrl.types import Decoded

_PROBE = "A probe: héllo wörld, 你好 🎉 — naïve\n\tx  y\r\n<b>1234</b> \U0001f9d1\u200d\U0001f52c end"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_characters() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + n): byte for n, byte in enumerate(b for b in range(256) if b not in printable)})
    return table


_BYTES = _byte_characters()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode()


def _sentence_piece(token: str) -> bytes:
    byte = _BYTE.match(token)
    return bytes([int(byte.group(1), 16)]) if byte else token.replace("▁", " ").encode()


class Decoder:
    """Decodes the ids of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[int, bytes] = {}
        self._strip = False
        self._spell: Callable[[str], bytes] | None = None
        self._choose()

    def _choose(self) -> None:
        ids = list(self._tokenizer(_PROBE, add_special_tokens=False)["input_ids"])
        probes = [ids, ids[len(ids) // 2 :], *([ids[i]] for i in range(len(ids)))]
        probes += [[i] for i in list(self._tokenizer.added_tokens_decoder)[:64]]
        expected = [self._own(probe) for probe in probes]
        for spell in (_byte_level, _sentence_piece):
            for strip in (False, True):
                self._spell, self._strip, self._cache = spell, strip, {}
                if all(self._by_bytes(probe).text == text for probe, text in zip(probes, expected, strict=True)):
                    return
        self._spell = None

    def __call__(self, ids: Sequence[int]) -> Decoded:
        """Text and offsets of all ids; special tokens are kept as text."""
        return self._by_bytes(ids) if self._spell is not None else self._by_window(ids)

    def _own(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def _bytes(self, token_id: int) -> bytes:
        known = self._cache.get(token_id)
        if known is None:
            token = self._tokenizer.convert_ids_to_tokens(token_id)
            # Ids beyond the vocabulary exist in models with padded embeddings; they decode to nothing.
            known = self._spell(token) if token is not None and self._spell is not None else b""
            self._cache[token_id] = known
        return known

    def _by_bytes(self, ids: Sequence[int]) -> Decoded:
        known = self._cache
        try:
            pieces = list(map(known.__getitem__, ids))
        except KeyError:
            pieces = [self._bytes(token_id) for token_id in ids]
        joined = b"".join(pieces)
        text = joined.decode("utf-8", errors="replace")
        one_byte_each = len(text) == len(joined)
        offsets = list(accumulate(map(len, pieces), initial=0)) if one_byte_each else _character_offsets(pieces)
        if self._strip and text.startswith(" "):
            text, offsets = text[1:], [max(offset - 1, 0) for offset in offsets]
        return Decoded(text, tuple(offsets))

    def _by_window(self, ids: Sequence[int]) -> Decoded:
        pieces: list[str] = []
        offsets: list[int] = []
        start = read = length = 0
        for end in range(1, len(ids) + 1):
            offsets.append(length)
            before, now = self._own(ids[start:read]), self._own(ids[start:end])
            complete = not now.endswith("\N{REPLACEMENT CHARACTER}") or end == len(ids)
            if complete and len(now) >= len(before):
                pieces.append(now[len(before) :])
                length += len(pieces[-1])
                start, read = read, end
        return Decoded("".join(pieces), (*offsets, length))


def _character_offsets(pieces: Sequence[bytes]) -> list[int]:
    """The character that holds the first byte of each piece; one more entry for the end."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    offsets: list[int] = []
    emitted = 0
    for piece in pieces:
        pending = decoder.getstate()[0]
        if pending and piece and not _continues(pending, piece[:1]):
            # The bytes before this piece are no character: they become one replacement character of their own.
            offsets.append(emitted + 1)
        else:
            offsets.append(emitted)
        emitted += len(decoder.decode(piece))
    emitted += len(decoder.decode(b"", final=True))
    return [*offsets, emitted]


def _continues(pending: bytes, byte: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="strict")
    try:
        decoder.decode(pending + byte)
    except UnicodeDecodeError:
        return False
    return True
