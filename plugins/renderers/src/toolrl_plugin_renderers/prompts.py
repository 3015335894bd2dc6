"""What a parser hands to the library: a turn's ids, and a prompt that ends as the turn's own did.

The library asks the prompt one thing: whether the turn begins inside thinking. The parser knows that, and not the
prompt; so it hands over a short one that ends the same way. Two are looked for when the parser is built, each tried by
reading an empty turn after it. A turn of which only the text is known is encoded first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from toolrl.errors import ChatFormatError
from toolrl.types import Decoded, Message, ToolCall
from toolrl_plugin_chat.control import Shield, finder
from toolrl_plugin_chat.trial import QUESTION, RESULT
from toolrl_plugin_renderers.conversation import NAMELESS
from toolrl_plugin_renderers.setup import Setup
from toolrl_plugin_renderers.turns import Turns

_ADDRESS = 4
"""Tokens that hold the beginning of a header's address."""
_HARMONY_HEADER = "<|start|>assistant"


class Prompts:
    """Reads turns with one renderer."""

    def __init__(self, setup: Setup, turns: Turns) -> None:
        self._setup = setup
        candidates = [None, *_generation_prompts(turns)]
        begin, end = setup.family.think
        behind = [ids for ids in candidates if ids]
        if begin:
            candidates += [[*ids, *setup.codec.encode_after(mark)] for ids in behind for mark in (begin, end)]
        self._thinking = self._first(candidates, thinking=True)
        self._plain = self._first(candidates, thinking=False)
        header = setup.codec.encode(_HARMONY_HEADER)
        channel = setup.codec.added.get("<|channel|>")
        # Harmony's prompts may end before the channel; the library wants to see the message's beginning.
        self._header = (channel, header) if setup.family.encodes_itself and channel is not None else None

    def read(self, ids: Sequence[int], tools: list[dict[str, Any]] | None, *, in_thinking: bool) -> tuple[Any, int]:
        """What the library makes of a turn, and by how many tokens its spans are shifted."""
        shift, turn = 0, list(ids)
        if self._header is not None and (turn[:1] == [self._header[0]] or self._addressed(turn)):
            turn = [*self._header[1], *turn]
            shift = len(self._header[1])
        prompt = self._thinking if in_thinking else self._plain
        return self._setup.renderer.parse_response(turn, tools=tools, prompt_ids=prompt), shift

    def _addressed(self, turn: list[int]) -> bool:
        """Whether a turn goes on in the header that the prompt began, with the tool that it is for."""
        return self._setup.text(turn[:_ADDRESS]).startswith(" to=")

    def _first(self, candidates: Sequence[list[int] | None], *, thinking: bool) -> list[int] | None:
        for ids in candidates:
            read = self._setup.renderer.parse_response([], prompt_ids=ids)
            if (read.reasoning_complete is False) == thinking:
                return ids
        return None


def _generation_prompts(turns: Turns) -> list[list[int]]:
    """Prompts after a question and after a result."""
    question = Message("user", QUESTION)
    call = ToolCall(NAMELESS, {}, id="call_1")
    result = Message("tool", RESULT, tool_call_id="call_1", name=NAMELESS)
    prompts = [turns.ids([question], (), generation_prompt=True)]
    with suppress(ChatFormatError):
        after = [question, Message("assistant", "", tool_calls=(call,)), result]
        prompts.append(turns.ids(after, (), generation_prompt=True))
    return prompts


class TextEncoder:
    """Encodes turns. An end mark can't stand inside a turn, so where the text spells one before its end, it is plain
    text."""

    def __init__(self, setup: Setup) -> None:
        self._codec = setup.codec
        self._names = {token: text for text, token in setup.codec.added.items()}
        self._ends = tuple(self._names[token] for token in setup.stops if token in self._names)
        setup.codec.add_control(self._ends)
        self._finder = finder(self._ends)
        self._closing = setup.codec.added.get(setup.family.closing_stop)

    def __call__(self, text: str, *, ended: bool) -> tuple[list[int], Decoded]:
        """The ids, and `text` with its offsets. `ended`: an end mark ended the turn; a decoded text lacks it,
        and where it is a call's closing mark too, it is put back."""
        last = next((end for end in self._ends if text.endswith(end)), "")
        shield = Shield()
        ids = self._codec.encode_shielded(shield.hide(text[: len(text) - len(last)], self._finder) + last, shield)
        decoded = self._codec.decode(ids, ())
        offsets = decoded.offsets if decoded.text == text else self._aligned(ids, text, decoded)
        if ended and not last and self._closing is not None:
            return [*ids, self._closing], Decoded(text, (*offsets, len(text)))
        return ids, Decoded(text, offsets)

    def _aligned(self, ids: Sequence[int], text: str, decoded: Decoded) -> tuple[int, ...]:
        """Offsets in a text that its tokens don't decode to (a normaliser, halves of surrogate pairs): exact at added
        tokens, which stand there as they are spelled, and between them as far as the decoded text counts."""
        if len(decoded.text) == len(text):
            return decoded.offsets
        anchors: list[tuple[int, int, int]] = []  # token, character, length
        position = 0
        for index, token in enumerate(ids):
            name = self._names.get(token)
            at = text.find(name, position) if name else -1
            if name and at >= 0:
                anchors.append((index, at, len(name)))
                position = at + len(name)
        offsets: list[int] = []
        start = begin = 0
        for index, at, length in [*anchors, (len(ids), len(text), 0)]:
            base = decoded.offsets[begin]
            offsets += [min(start + decoded.offsets[i] - base, at) for i in range(begin, index)]
            offsets.append(at)
            start, begin = at + length, min(index + 1, len(ids))
        return tuple(offsets)
