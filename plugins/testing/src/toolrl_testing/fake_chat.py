"""A tokenizer and a chat format of which each character is a token."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolrl.types import Decoded, Message, Rendered, Role, ToolSpec

_FIRST_MARK = 0x110000
"""Above all characters."""
END_ID = _FIRST_MARK
_ROLE_IDS: dict[Role, int] = {
    "system": _FIRST_MARK + 1,
    "user": _FIRST_MARK + 2,
    "assistant": _FIRST_MARK + 3,
    "tool": _FIRST_MARK + 4,
}
_MARK_TEXT = {END_ID: "<|end|>", **{number: f"<|{role}|>" for role, number in _ROLE_IDS.items()}}


@dataclass(frozen=True)
class _AddedToken:
    content: str
    special: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class CharTokenizer:
    """A tokenizer with the part of transformers' interface that chat formats and engines use. Each character is a
    token, `ord` its id; the special tokens are `<|end|>`, which is the end of sequence, and a mark for each role."""

    eos_token, eos_token_id = _MARK_TEXT[END_ID], END_ID
    bos_token = bos_token_id = chat_template = None
    all_special_ids: Sequence[int] = tuple(_MARK_TEXT)

    def __init__(self) -> None:
        self.added_tokens_decoder = {number: _AddedToken(text) for number, text in _MARK_TEXT.items()}
        self._ids = {text: number for number, text in _MARK_TEXT.items()}
        self._marks = re.compile("(" + "|".join(map(re.escape, self._ids)) + ")")

    def __len__(self) -> int:
        return END_ID + len(_MARK_TEXT)

    def __call__(self, text: str, *, split_special_tokens: bool = False, **options: Any) -> dict[str, list[int]]:
        pieces = [text] if split_special_tokens else self._marks.split(text)
        ids = [[self._ids[piece]] if piece in self._ids and not split_special_tokens else list(map(ord, piece))
               for piece in pieces]  # fmt: skip
        return {"input_ids": [number for piece in ids for number in piece]}

    def encode(self, text: str, **options: Any) -> list[int]:
        return self(text, **options)["input_ids"]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False, **options: Any) -> str:
        kept = [number for number in ids if not (skip_special_tokens and number in _MARK_TEXT)]
        return "".join(self.convert_ids_to_tokens(number) for number in kept)

    def convert_ids_to_tokens(self, number: int) -> str:
        return _MARK_TEXT.get(number) or chr(number)


class TemplateTokenizer(CharTokenizer):
    """The same with a chat template, written in Python, which shows tools in a way of its own."""

    chat_template = "written in Python"  # type: ignore[assignment]  # the base has none

    def apply_chat_template(self, messages: Any, *, tools: Any, add_generation_prompt: bool, **options: Any) -> str:
        turns = [f"<|{message['role']}|>{message['content']}<|end|>" for message in messages]
        told = f"<|system|>{tools}<|end|>" if tools else ""
        think = "<think>" if options.get("think") else ""
        return told + "".join(turns) + (f"<|assistant|>{think}" if add_generation_prompt else "")


class FakeChatFormat:
    """Each character is a token, `ord` its id; each role has a mark, and one mark ends every message. Tools stand as
    JSON lines in a system message of their own, calls in hermes form, thinking in `<think>` tags."""

    end_ids: Sequence[int] = (END_ID,)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        ids: list[int] = []
        if tools:
            lines = "\n".join(json.dumps(spec.as_function(), ensure_ascii=False) for spec in tools)
            ids.extend(self._message(Message("system", lines)))
        return Rendered((*ids, *self._messages(messages), _ROLE_IDS["assistant"]))

    def bridge(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        end = () if sampled_ids and sampled_ids[-1] == END_ID else (END_ID,)
        return Rendered((*end, *self._messages(messages), _ROLE_IDS["assistant"]))

    def say(self, message: Message) -> tuple[int, ...]:
        return (*self.inline(_spoken(message)), END_ID)

    def inline(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def decode(self, ids: Sequence[int]) -> Decoded:
        ids = ids[:-1] if ids and ids[-1] == END_ID else ids
        pieces = [_MARK_TEXT.get(number) or chr(number) for number in ids]
        offsets = [0]
        for piece in pieces:
            offsets.append(offsets[-1] + len(piece))
        return Decoded("".join(pieces), tuple(offsets))

    def token_count(self, text: str) -> int:
        return len(text)

    def _messages(self, messages: Sequence[Message]) -> list[int]:
        return [number for message in messages for number in self._message(message)]

    def _message(self, message: Message) -> list[int]:
        return [_ROLE_IDS[message.role], *self.say(message)]


def _spoken(message: Message) -> str:
    thinking = f"<think>{message.reasoning}</think>" if message.reasoning is not None else ""
    calls = [json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in message.tool_calls]
    return thinking + message.content + "".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
