"""What the chat format and the parser are both built from: a tokenizer, a renderer around it, and its family.

The library puts a message's text and its own markup together and encodes them in one go, so a tool's result that holds
`<|im_end|>` would end the turn. Texts from outside therefore go through core's `Shield` first, which leaves private
marks in the place of control strings, and the tokenizer that the library sees puts them back as plain text while it
encodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from toolrl.types import Decoded, ToolSpec
from toolrl_plugin_chat.codec import Codec
from toolrl_plugin_chat.control import Shield
from toolrl_plugin_renderers import library
from toolrl_plugin_renderers.families import FAMILIES
from toolrl_plugin_renderers.options import RenderersFormatOptions

TAIL = 16
"""Tokens of a prompt's end that show whether it opens thinking."""
_SHORT = 64
"""Tokens that are sooner decoded than looked up."""


class ShieldedTokenizer:
    """Encodes with a `Codec`; everything else is the tokenizer's own."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._shield = Shield()
        self._decoded: tuple[list[int], Decoded] = ([], Decoded("", (0,)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec.tokenizer, name)

    @contextmanager
    def hiding(self, shield: Shield) -> Iterator[None]:
        """While this lasts, what `shield` hid is encoded as plain text."""
        outer, self._shield = self._shield, shield
        try:
            yield
        finally:
            self._shield = outer

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """Ids, nothing added at the ends."""
        return self._codec.encode_shielded(text, self._shield)

    def __call__(self, text: str, *_: Any, **__: Any) -> dict[str, Any]:
        """The same with offsets that all say 0. The library attributes tokens to messages by them, which is unused
        here; without any it would search for them by decoding."""
        ids = self.encode(text)
        return {"input_ids": ids, "offset_mapping": [(0, 0)] * len(ids)}

    def decode(self, token_ids: Sequence[int], *_: Any, **__: Any) -> str:
        """Text with special tokens in it. The library asks for one beginning of a turn after the other to find where a
        mark stands; those are cut from the turn's text instead of decoded each."""
        ids = list(token_ids)
        count = len(ids)
        known, decoded = self._decoded
        if _SHORT < count <= len(known) and known[:count] == ids:
            return decoded.text[: decoded.offsets[count]]
        decoded = self._codec.decode(ids, ())
        if count > _SHORT:
            self._decoded = ids, decoded
        return decoded.text


class Setup:
    """Raises ChatFormatError where no renderer is found or where it doesn't fit, ComponentLoadError without the
    library."""

    def __init__(self, options: RenderersFormatOptions, tokenizer: Any, where: str) -> None:
        self.where = where
        self.codec = Codec(tokenizer, where)
        self.name = library.resolve(options.renderer, tokenizer, where)
        self.family = FAMILIES[self.name]
        self.tokenizer = ShieldedTokenizer(self.codec)
        self.renderer = library.build(self.name, options.options, self.tokenizer, where)
        self.stops: tuple[int, ...] = tuple(dict.fromkeys(self.renderer.get_stop_token_ids()))
        """Ids that end a turn."""

    def text(self, ids: Sequence[int]) -> str:
        """Special tokens in it as text."""
        return self.codec.decode(ids, ()).text

    def in_thinking(self, ids: Sequence[int]) -> bool:
        """Whether a prompt ends inside an opened thinking block."""
        return self._ends_with(ids, self.family.think[0])

    def closes_thinking(self, ids: Sequence[int]) -> bool:
        """Whether a prompt ends with a closed thinking block."""
        return self._ends_with(ids, self.family.think[1])

    def _ends_with(self, ids: Sequence[int], mark: str) -> bool:
        return bool(mark) and self.text(ids[-TAIL:]).rstrip().endswith(mark)


def functions(specs: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    """Tools in the library's form; None for none."""
    return [spec.as_function() for spec in specs] or None
