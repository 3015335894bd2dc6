"""What both chat formats do alike: everything that needs the tokenizer and no messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from toolrl.chat.codec import Codec
from toolrl.chat.control import broken_up
from toolrl.errors import ChatFormatError
from toolrl.types import Decoded, Message


class TokenFormat:
    """Base of a chat format that encodes with a `Codec`."""

    _codec: Codec
    end_ids: Sequence[int]
    """Token ids that end an assistant turn."""
    _turn_marks: re.Pattern[str] | None = None
    """Marks between turns that are ordinary text."""

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


def refuse_media(messages: Iterable[Message], where: str) -> None:
    """Raise ChatFormatError for images and videos: a format for text alone must not drop them in silence."""
    for message in messages:
        if message.media:
            raise ChatFormatError(
                f"a message of role {message.role} holds a {message.media[0].kind}; this chat format takes text alone",
                where=where,
                hint="Images need a vision-language model and `chat_format: template`, in messages of the user or of "
                "tools.",
            )
