"""Text to ids and back, for both chat formats: the only place that encodes.

`encode` is the tokenizer's own encoding of a whole text, with nothing added at its ends. `encode_shielded` gives the
same ids for a text without hidden control strings, and reads hidden ones as plain text. For this it keeps a second
tokenizer, made when first needed: a copy in which each control token has another, random name. The template's own
control strings are given that name before encoding; those that come from outside keep theirs, which the copy doesn't
know. So the text is split at the same places and every other token stays what it was.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from toolrl.errors import ChatFormatError
from toolrl.types import Decoded
from toolrl_plugin_chat.control import Shield, alternatives, finder, well_formed
from toolrl_plugin_chat.decoding import Decoder


class Codec:
    """Encodes and decodes with one tokenizer. `where` names the component in messages."""

    def __init__(self, tokenizer: Any, where: str) -> None:
        if tokenizer is None:
            raise ChatFormatError("a chat format needs the model's tokenizer, and none was given", where=where)
        self.tokenizer = tokenizer
        self.where = where
        added = dict(tokenizer.added_tokens_decoder)
        self.added: dict[str, int] = {token.content: int(token_id) for token_id, token in added.items()}
        """Content to id of every added token, special or not."""
        self.special = {token.content for token in added.values() if token.special}
        """Contents of the special ones."""
        self._added_ids = frozenset(self.added.values())
        self._control: set[str] = set()
        self._special_finder = finder(self.special)
        self.add_control(self.special)
        self._decoder = Decoder(tokenizer)
        self._heads = self._find_heads()

    # Encoding.

    def encode(self, text: str) -> list[int]:
        """Ids of a whole text as the tokenizer splits it, nothing added."""
        return list(self.tokenizer(well_formed(text), add_special_tokens=False, verbose=False)["input_ids"])

    def encode_after(self, text: str, before: str = "") -> list[int]:
        """Ids of a text that continues another, which ends with `before` where that is known."""
        return self._behind_a_head(text, (before, *self._heads) if before else self._heads, self.encode)

    def encode_shielded(self, text: str, shield: Shield) -> list[int]:
        """Ids of a rendered text whose contents went through `shield`: hidden control strings become plain text, and so
        does what only the tokenizer's normalizer makes one (`＜|im_end|＞`)."""
        if shield or self._normalizes:
            return self._plain_copy().encode(well_formed(text), shield)
        return self.encode(text)

    def encode_shielded_after(self, text: str, shield: Shield) -> list[int]:
        """The same for a text that continues another."""
        return self._behind_a_head(text, self._heads, lambda whole: self.encode_shielded(whole, shield))

    def _behind_a_head(self, text: str, heads: Sequence[str], encode: Callable[[str], list[int]]) -> list[int]:
        """Ids of `text` behind the first of `heads` that it doesn't merge with; by itself where there is none."""
        for head in heads:
            known, ids = self.encode(head), encode(head + text)
            if ids[: len(known)] == known:
                return ids[len(known) :]
        return encode(text)

    def inline(self, text: str) -> list[int]:
        """Ids of a text inside a turn; special tokens in it are plain text."""
        shield = Shield()
        return self.encode_shielded_after(shield.hide(text, self._special_finder), shield)

    def is_added(self, token_id: int) -> bool:
        """Whether this id is an added token: one at which every text is split first."""
        return token_id in self._added_ids

    def add_control(self, texts: Iterable[str]) -> None:
        """Added tokens that aren't special but are control tokens of the template."""
        self._control.update(texts)
        self._plain: _PlainCopy | None = None
        normalizer = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "normalizer", None)
        tokens = self.tokenizer.added_tokens_decoder.values()
        self._normalizes = normalizer is not None and any(t.normalized and t.content in self._control for t in tokens)

    def _plain_copy(self) -> _PlainCopy:
        if self._plain is None:
            self._plain = _PlainCopy(self.tokenizer, self._control, self.added, self.where)
        return self._plain

    def _find_heads(self) -> tuple[str, ...]:
        """What to encode a text behind that continues another. Some tokenizers put a blank before a text's first
        word: there a special token will do, or an ordinary letter where the blank follows special tokens, too."""
        alone, line, behind_line = self.encode("x"), self.encode("\n"), self.encode("\nx")
        if behind_line in (alone, line + alone) or behind_line[: len(line)] != line:
            return ()
        for token in self.tokenizer.added_tokens_decoder.values():
            if token.special and not token.rstrip and self.encode(f"{token.content}x")[1:] != alone:
                return (token.content,)
        return ("\n", ".", "a")

    # Decoding.

    def decode(self, ids: Sequence[int], end_ids: Sequence[int]) -> Decoded:
        """Text and offsets of sampled ids; a closing end mark has no text and starts at the end."""
        if ids and ids[-1] in end_ids:
            decoded = self._decoder(ids[:-1])
            return Decoded(decoded.text, (*decoded.offsets, len(decoded.text)))
        return self._decoder(ids)


class _PlainCopy:
    """The copy of a tokenizer in which control tokens have random names."""

    def __init__(self, tokenizer: Any, control: Iterable[str], added: dict[str, int], where: str) -> None:
        self._where = where
        self._tokenizer = tokenizer
        self._control = sorted(control)
        self._added = added
        self._pattern = re.compile(alternatives(self._control)) if self._control else None
        self._ids = {added[text] for text in self._control}
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        nonce = secrets.token_hex(8)
        self._names = {text: f"\U00100000{nonce}{number:06d}\U00100001" for number, text in enumerate(self._control)}
        self._copy = self._rename() if self._backend is not None else None
        self._back = self._ids_of_copy() if self._copy is not None else {}

    def _rename(self) -> Any:
        backend: Any = self._backend
        # The model, which is nearly all of a tokenizer, is shared and not copied.
        copy = type(backend)(backend.model)
        if backend.normalizer is not None:
            copy.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            copy.pre_tokenizer = backend.pre_tokenizer
        added = [token for _, token in sorted(self._tokenizer.added_tokens_decoder.items())]
        copy.add_tokens([self._renamed(token) for token in added])
        return copy

    def _renamed(self, token: Any) -> Any:
        return type(token)(
            self._names.get(token.content, token.content),
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
        )

    def _ids_of_copy(self) -> dict[int, int]:
        # A copy numbers the renamed tokens by itself, behind the vocabulary.
        names = {text: self._names.get(text, text) for text in self._added}
        copy: Any = self._copy
        return {int(copy.token_to_id(name)): self._added[text] for text, name in names.items()}

    def encode(self, text: str, shield: Shield) -> list[int]:
        wanted = len(self._pattern.findall(text)) if self._pattern else 0
        ids = self._by_copy(text, shield) if self._copy is not None else self._by_parts(text, shield)
        found = sum(1 for token_id in ids if token_id in self._ids)
        if found != wanted:
            raise ChatFormatError(
                "a text from outside holds special tokens of this tokenizer, and they can't be read as plain text",
                where=self._where,
                hint="Remove them from the data, or use a tokenizer with a tokenizer.json.",
            )
        return ids

    def _by_copy(self, text: str, shield: Shield) -> list[int]:
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: self._names[match.group()], text)
        copy: Any = self._copy
        ids = copy.encode(shield.restore(text), add_special_tokens=False).ids
        return [self._back.get(token_id, token_id) for token_id in ids]

    def _by_parts(self, text: str, shield: Shield) -> list[int]:
        """For a tokenizer without a fast backend: the text between control tokens, with splitting switched off."""
        ids: list[int] = []
        position = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            ids += self._part(shield.restore(text[position : match.start()]))
            ids.append(self._added[match.group()])
            position = match.end()
        return ids + self._part(shield.restore(text[position:]))

    def _part(self, text: str) -> list[int]:
        if not text:
            return []
        return list(self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
