"""Tool output cut by tokens: never more than allowed, never in the middle of a character."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from toolrl.tools.truncate import Side, token_cut
from toolrl.types import Decoded
from toolrl_testing.fakes import FakeChatFormat

SIDES: list[Side] = ["head", "tail", "middle"]


class ByteFormat(FakeChatFormat):
    """Each byte is a token, so that a token may begin inside a character."""

    def inline(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def decode(self, ids: Sequence[int]) -> Decoded:
        text = bytes(ids).decode(errors="replace")
        offsets, seen = [], -1
        for byte in ids:
            seen += (byte & 0xC0) != 0x80
            offsets.append(max(seen, 0))
        return Decoded(text, (*offsets, len(text)))

    def token_count(self, text: str) -> int:
        return len(text.encode())


@given(
    text=st.text(st.sampled_from("ab é€𝄞"), max_size=300),
    limit=st.integers(1, 120),
    side=st.sampled_from(SIDES),
)
def test_a_cut_text_holds_at_most_the_tokens_allowed(text: str, limit: int, side: Side) -> None:
    for chat in (ByteFormat(), FakeChatFormat()):
        result, was_cut = token_cut(chat)(text, limit, side)
        assert chat.token_count(result) <= limit
        assert was_cut == (chat.token_count(text) > limit)
        assert was_cut or result == text
        assert "�" not in result


class BreaksFormat(FakeChatFormat):
    """Four line breaks are one token, and a bracket takes two of them: put together, "]\\n" and "\\n\\n\\n\\n" are four
    tokens, and three when they stand alone."""

    _LONG: ClassVar = {"]\n\n": 0x110000, "\n\n\n\n": 0x110001}

    def inline(self, text: str) -> tuple[int, ...]:
        return tuple(self._LONG.get(it) or ord(it) for it in re.findall(r"\]\n\n|\n{4}|\n|[^\n]", text))

    def decode(self, ids: Sequence[int]) -> Decoded:
        names = {number: text for text, number in self._LONG.items()}
        parts = [names.get(number) or chr(number) for number in ids]
        return Decoded("".join(parts), (0, *itertools.accumulate(map(len, parts))))

    def token_count(self, text: str) -> int:
        return len(self.inline(text))


@given(
    text=st.text(st.sampled_from("\n\n\n\n\n\na"), min_size=100, max_size=300),
    limit=st.integers(27, 60),
    side=st.sampled_from(SIDES),
)
def test_also_where_the_mark_and_what_is_kept_merge_in_another_way(text: str, limit: int, side: Side) -> None:
    chat = BreaksFormat()
    result, was_cut = token_cut(chat)(text, limit, side)
    assert chat.token_count(result) <= limit
    assert was_cut == (chat.token_count(text) > limit)
