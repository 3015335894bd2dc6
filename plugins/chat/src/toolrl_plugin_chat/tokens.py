"""What all chat formats do alike: everything that needs the tokenizer and no messages.

Besides a template's own mark, a turn ends with the tokens that the user names and those that the model names. A model's
folder may name several end tokens in generation_config.json (Qwen3's names `<|im_end|>` and `<|endoftext|>`, Llama 3's
three of them); servers stop at all of them, and so does a rollout. The tokenizer knows the folder that it was loaded
from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolrl.errors import ChatFormatError
from toolrl.types import Decoded, Message
from toolrl_plugin_chat.codec import Codec
from toolrl_plugin_chat.control import broken_up


class TokenFormat:
    """Base of a chat format that encodes with a `Codec`."""

    _codec: Codec
    _where: str
    end_ids: Sequence[int]
    """Token ids that end an assistant turn."""
    _turn_marks: re.Pattern[str] | None = None
    """Marks between turns that are ordinary text."""

    def say(self, message: Message) -> tuple[int, ...]:
        """What a model would sample to say `message`, end mark included. Raises ChatFormatError where the format can't
        show all of it."""
        if message.role != "assistant":
            raise ChatFormatError(f"a message of role {message.role} can't be sampled", where=self._where)
        refuse_media([message], self._where)
        return tuple(self._said(message))

    def _said(self, message: Message) -> Sequence[int]:
        """Ids of an assistant message, end mark included; needed where `say` isn't replaced."""
        raise NotImplementedError

    def inline(self, text: str) -> tuple[int, ...]:
        """Ids of a text inside a turn, special tokens read as plain text."""
        return tuple(self._codec.inline(broken_up(text, self._turn_marks)))

    def without_marks(self, message: Message) -> Message:
        """A message that comes during an episode, with a blank within each mark that it holds."""
        if self._turn_marks is None or message.role not in ("user", "tool"):
            return message
        return replace(message, content=broken_up(message.content, self._turn_marks))

    def decode(self, ids: Sequence[int]) -> Decoded:
        """Text of sampled ids, a closing end mark left out. Linear time."""
        return self._codec.decode(ids, self.end_ids)

    def token_count(self, text: str) -> int:
        """How many tokens `inline(text)` has."""
        return len(self.inline(text))


def common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How far two sequences are the same."""
    differ = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def refuse_media(messages: Iterable[Message], where: str, *, images: bool = False) -> None:
    """Raise ChatFormatError for images and videos, but with `images` for images of users and of tools: a format must
    not drop them in silence."""
    for message in messages:
        for item in message.media:
            if images and item.kind == "image" and message.role in ("user", "tool"):
                continue
            raise ChatFormatError(
                f"a message of role {message.role} holds a {item.kind}; this chat format takes "
                + ("images of users and of tools alone" if images else "text alone"),
                where=where,
                hint="Of a video give some frames as images. Images need a vision-language model and `chat_format: "
                "template`, in messages of the user or of tools.",
            )


def turn_end_ids(codec: Codec, texts: Sequence[str], where: str) -> list[int]:
    """Ids of the option `turn_end`. Raises ChatFormatError for a text that isn't one token."""
    ends = []
    for text in texts:
        ids = codec.encode(text)
        if len(ids) != 1:
            raise ChatFormatError(
                f"turn_end {text!r} is {len(ids)} tokens of this tokenizer, and a turn ends with one",
                where=where,
                hint="Choose a text that is one token, or leave turn_end out to end turns with the "
                "end-of-sequence token.",
            )
        ends += ids
    return ends


def model_end_ids(codec: Codec, where: str) -> list[int]:
    """The tokenizer's end-of-sequence token, and those that the model's generation config names."""
    eos = codec.tokenizer.eos_token_id
    # A config may hold a default that means an ordinary token of this vocabulary; a real end mark is an added one.
    further = [token_id for token_id in _of_generation_config(codec, where) if codec.is_added(token_id)]
    return list(dict.fromkeys([eos, *further] if eos is not None else further))


def _of_generation_config(codec: Codec, where: str) -> list[int]:
    source = getattr(codec.tokenizer, "name_or_path", None)
    path = Path(source) / "generation_config.json" if isinstance(source, str) and source else None
    if path is None or not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise ChatFormatError(
            f"the model's generation config can't be read: {error}",
            where=where,
            hint=f"Mend or remove {path}, a JSON object.",
        ) from error
    ids = found if isinstance(found, list) else [found]
    return [token_id for token_id in ids if isinstance(token_id, int) and not isinstance(token_id, bool)]
