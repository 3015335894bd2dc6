"""Images as tokens and tensors.

A chat template writes one placeholder token for an image. How many tokens the model sees in its place depends on the
image's size, and a transformers processor knows it: it is given the placeholder and the image, and what it makes of
the placeholder stands in its place. Each image goes through it alone, so that an image costs the same wherever it
stands, and that what was made of it can be used again: the episodes of a group open with the same one.

Where the processor itself can't be loaded (those that also take videos need torchvision), the image processor does,
for models of the Qwen-VL kind: an image of t · h · w patches has t · h · w / merge_size² tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from toolrl.errors import ChatFormatError
from toolrl.types import IMAGE_MARK, Media, MediaInput, Message
from toolrl_common.images import load_image

_KEPT = 64
"""Images whose tensors are kept, for the other episodes of their groups."""
_OWN = frozenset({"input_ids", "attention_mask"})


_Expansion = tuple[tuple[int, ...], MediaInput]
"""What one image becomes: its tokens, and the image at the beginning of them."""


class Images:
    """Puts the images of one model's messages among their tokens. `where` names the chat format in messages."""

    def __init__(self, processor: Any, tokenizer: Any, where: str) -> None:
        """`processor`: a transformers processor, or an image processor. Raises ChatFormatError for one that isn't
        understood."""
        self._processor = processor
        self._tokenizer = tokenizer
        self._where = where
        self._whole = hasattr(processor, "tokenizer")
        self.placeholder = self._find_placeholder()
        """The token that a template writes for an image."""
        self.placeholder_id = int(tokenizer.convert_tokens_to_ids(self.placeholder))
        self._kept: dict[str, _Expansion] = {}

    def _find_placeholder(self) -> str:
        candidates = [getattr(self._processor, "image_token", None), getattr(self._tokenizer, "image_token", None)]
        if not self._whole and getattr(self._processor, "merge_size", None):
            candidates.append("<|image_pad|>")
        known = self._tokenizer.get_vocab()
        for token in candidates:
            if isinstance(token, str) and token in known:
                return token
        raise ChatFormatError(
            f"{type(self._processor).__name__} doesn't say which token stands for an image",
            where=self._where,
            hint="Use a model whose processor transformers can load (some need torchvision: pip install torchvision).",
        )

    def put_in(self, ids: Sequence[int], media: Sequence[Media]) -> tuple[tuple[int, ...], tuple[MediaInput, ...]]:
        """`ids` with each placeholder replaced by its image's tokens, and the images. Raises ChatFormatError where
        there aren't as many placeholders as images, or an image can't be read."""
        shown = sum(1 for token in ids if token == self.placeholder_id)
        if shown != len(media):
            raise ChatFormatError(
                f"the messages hold {len(media)} images, and the chat template shows {shown} of them",
                where=self._where,
                hint="For images in tool results try `options: {tool_role: user}`, or another chat_template.",
            )
        result: list[int] = []
        inputs: list[MediaInput] = []
        left = iter(media)
        for token in ids:
            if token != self.placeholder_id:
                result.append(token)
                continue
            tokens, image = self._expand(next(left))
            inputs.append(image.moved(len(result)))
            result.extend(tokens)
        return tuple(result), tuple(inputs)

    def _expand(self, media: Media) -> _Expansion:
        image = load_image(media.data, self._where)
        key = _digest(image)
        make = self._by_processor if self._whole else self._by_patches
        made = self._kept.pop(key) if key in self._kept else make(image, key)
        self._kept[key] = made  # The newest stand last.
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return made

    def _by_processor(self, image: Any, key: str) -> _Expansion:
        made = self._call(text=[self.placeholder], images=[image], add_special_tokens=False)
        (ids,) = made["input_ids"].tolist()
        types, tensors = {}, {}
        for name, value in made.items():
            if name in _OWN:
                continue
            if tuple(value.shape) == (1, len(ids)) and name.endswith("type_ids"):
                types[name] = tuple(value[0].tolist())
            else:
                tensors[name] = value
        return tuple(ids), MediaInput("image", (0, len(ids)), key, tensors, types)

    def _by_patches(self, image: Any, key: str) -> _Expansion:
        made = self._call(images=[image])
        grid = made.get("image_grid_thw")
        if grid is None:
            raise ChatFormatError(
                f"{type(self._processor).__name__} doesn't say how many tokens an image has",
                where=self._where,
                hint="Install what the model's whole processor needs: pip install torchvision.",
            )
        count = int(grid[0].prod()) // int(self._processor.merge_size) ** 2
        types = {"mm_token_type_ids": (1,) * count}
        return (self.placeholder_id,) * count, MediaInput("image", (0, count), key, dict(made), types)

    def _call(self, **arguments: Any) -> Any:
        try:
            return self._processor(**arguments, return_tensors="pt")
        except Exception as error:
            (image,) = arguments["images"]
            raise ChatFormatError(
                f"{type(self._processor).__name__} refuses an image of {image.width} by {image.height} pixels: {error}",
                where=self._where,
                hint="Most models need some 28 pixels on each side, and sides of less than 200 to 1.",
            ) from error


def parts(content: str, media: Sequence[Media]) -> list[dict[str, Any]]:
    """A message's content as typed parts: each image where the content says `<image>`, as many as there are; else all
    of them before the text."""
    pieces = content.split(IMAGE_MARK)
    image: dict[str, Any] = {"type": "image"}
    if len(pieces) - 1 != len(media):
        text = [{"type": "text", "text": content}] if content else []
        return [dict(image) for _ in media] + text
    result: list[dict[str, Any]] = []
    for number, piece in enumerate(pieces):
        if number:
            result.append(dict(image))
        if piece:
            result.append({"type": "text", "text": piece})
    return result


def check_marks(messages: Sequence[Message], where: str) -> None:
    """Raise ChatFormatError for a message of a data set that says `<image>` more or less often than it has images."""
    for message in messages:
        said = message.content.count(IMAGE_MARK)
        if message.role == "user" and message.media and said not in (0, len(message.media)):
            raise ChatFormatError(
                f"a user message says `{IMAGE_MARK}` {said} times, and has {len(message.media)} images",
                where=where,
                hint="Say it once for each image, or leave it out: the images stand before the text then.",
            )


def _digest(image: Any) -> str:
    digest = hashlib.blake2b(f"{image.width}x{image.height}".encode(), digest_size=16)
    digest.update(image.tobytes())
    return digest.hexdigest()
