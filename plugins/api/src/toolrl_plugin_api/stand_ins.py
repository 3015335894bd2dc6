"""What stands in the place of components that need a model's tokens or weights, which an API doesn't show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from toolrl.config.model import Config
from toolrl.errors import ChatFormatError, ConfigError
from toolrl.protocols import BuildContext, ToolParser
from toolrl.types import Decoded, Message, ParsedTurn, Rendered, ToolSpec

_CHARACTERS = 3
"""Of a token, where none are known: three code points fit into the 63 bits that a token id has."""
_BITS = 21
"""Hold any character's code point."""


class NativeCalls(ToolParser):
    """The parser of an API that reads calls itself: all text is content."""

    def __init__(self, options: None, context: BuildContext) -> None:
        pass

    def parse(
        self,
        text: str,
        *,
        tools: Sequence[ToolSpec],
        finish: Literal["stop", "length", "abort"] = "stop",
        stopped_by: str | None = None,
        prefilled_thinking: bool = False,
    ) -> ParsedTurn:
        return ParsedTurn(content=text, content_spans=((0, len(text)),) if text else ())


class Characters:
    """A chat format without a tokenizer: each three characters are a token. An API reads messages, so it only has to
    count and cut texts, and to render what goes on from a conversation as that conversation and more."""

    end_ids: Sequence[int] = ()

    def __init__(self, options: None, context: BuildContext) -> None:
        pass

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """Tools and messages as JSON, each with tokens of its own."""
        described = self.inline(json.dumps([it.as_function() for it in tools], ensure_ascii=False))
        return Rendered(described + self.bridge((), messages, ()).ids)

    def bridge(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        return Rendered(tuple([number for it in messages for number in self.inline(_line(it))]))

    def say(self, message: Message) -> tuple[int, ...]:
        """Raises ChatFormatError: no demonstration is one of tokens."""
        raise ChatFormatError("messages to an API are never tokens", hint="Use it with the engine `chat` only.")

    def inline(self, text: str) -> tuple[int, ...]:
        """A number for each three characters, made of their code points."""
        pieces = [text[start : start + _CHARACTERS] for start in range(0, len(text), _CHARACTERS)]
        return tuple([sum((ord(it) + 1) << _BITS * place for place, it in enumerate(piece)) for piece in pieces])

    def decode(self, ids: Sequence[int]) -> Decoded:
        pieces, offsets = [], [0]
        for number in ids:
            pieces.append(
                "".join(chr((number >> shift) % (1 << _BITS) - 1) for shift in range(0, number.bit_length(), _BITS))
            )
            offsets.append(offsets[-1] + len(pieces[-1]))
        return Decoded("".join(pieces), tuple(offsets))

    def token_count(self, text: str) -> int:
        return -(-len(text) // _CHARACTERS)


def _line(message: Message) -> str:
    """A message as text, without what doesn't count as its content."""
    calls = [[it.name, dict(it.arguments)] for it in message.tool_calls]
    return json.dumps([message.role, message.content, calls], ensure_ascii=False, default=str) + "\n"


class NoTrainer:
    """A `TrainerBackend` without a model, and the `TrainedModel` that it loads."""

    tokenizer = processor = None
    device, dtype, max_positions = "cpu", "auto", 2**31

    def __init__(self, config: Config, context: BuildContext) -> None:
        """Raises ConfigError for rollout workers, which would load weights."""
        if config.cluster.rollout_workers:
            raise ConfigError(
                f"cluster.rollout_workers: {config.cluster.rollout_workers} workers would load weights, and an API "
                "holds them",
                hint="Set it to 0: one process keeps rollout.concurrency episodes in flight.",
            )

    def prepare(self, device: str | None = None) -> None:
        """Nothing computes here."""

    def load_model(
        self, source: str, *, dtype: str | None = None, ranks: Any = None, hollow: bool = False
    ) -> NoTrainer:
        return self

    def weights(self, version: int, directory: Any = None) -> None:
        """None: the API keeps its own."""

    @staticmethod
    def clean(directory: Any) -> None:
        """It leaves nothing in a run's folder."""

    @staticmethod
    def _trains_nothing(*arguments: Any, **options: Any) -> Any:
        raise ConfigError(
            "trainer.use: `api/none` trains nothing; it stands for a trainer where the engine `chat` asks an API",
            hint="To train, take an engine that samples tokens, such as `transformers`.",
        )

    train = join = _trains_nothing
