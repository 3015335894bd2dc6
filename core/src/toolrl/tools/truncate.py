"""Tool output cut to a number of tokens.

Tokens are counted by the chat format itself, never estimated from characters. A huge output isn't tokenised as a whole:
a window at the side that is kept grows until it holds enough tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from toolrl.protocols import ChatFormat

Side = Literal["head", "tail", "middle"]
"""`head` keeps the beginning, `tail` keeps the end, `middle` keeps both and leaves out the middle."""
Cut = Callable[[str, int, Side], tuple[str, bool]]
"""(text, max_tokens, side) → (text of at most max_tokens tokens, whether it was cut)."""


def token_cut(chat: ChatFormat) -> Cut:
    """The cut that counts tokens as `chat.inline` makes them. The mark that says how much is missing counts too; where
    even the mark is too long, the text is cut without one."""

    def cut(text: str, max_tokens: int, side: Side) -> tuple[str, bool]:
        # No token holds less than one byte, so most texts need no tokenizer.
        if len(text) <= max_tokens and len(text.encode(errors="replace")) < max_tokens:
            return text, False
        if _prefix(chat, text, max_tokens) == text:
            return text, False
        room = max_tokens - chat.token_count(_mark(len(text), side))
        if room <= 0:
            return (_suffix if side == "tail" else _prefix)(chat, text, max_tokens), True
        head = _prefix(chat, text, room if side == "head" else room - room // 2) if side != "tail" else ""
        tail = _suffix(chat, text, room if side == "tail" else room // 2) if side != "head" else ""
        return head + _mark(len(text) - len(head) - len(tail), side) + tail, True

    return cut


def _mark(characters: int, side: Side) -> str:
    mark = f"[{characters} characters left out]"
    return f"\n{mark}" if side == "head" else f"{mark}\n" if side == "tail" else f"\n{mark}\n"


def _prefix(chat: ChatFormat, text: str, tokens: int) -> str:
    """The longest beginning of the text that `tokens` tokens hold."""
    width = 8 * tokens + 64
    while True:
        ids = chat.inline(text[:width])
        if len(ids) > tokens:
            decoded = chat.decode(ids)
            return decoded.text[: decoded.offsets[tokens]]
        if width >= len(text):
            return text
        width *= 4


def _suffix(chat: ChatFormat, text: str, tokens: int) -> str:
    """The longest end of the text that `tokens` tokens hold."""
    if tokens <= 0:
        return ""
    width = 8 * tokens + 64
    while True:
        ids = chat.inline(text[-width:])
        if len(ids) > tokens:
            first = len(ids) - tokens
            decoded = chat.decode(ids)
            start = decoded.offsets[first]
            if len(chat.decode(ids[:first]).text) > start:
                start += 1  # The first kept token begins inside this character: the whole of it would be too much.
            return decoded.text[start:]
        if width >= len(text):
            return text
        width *= 4
