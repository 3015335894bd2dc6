"""One rollout as the checks see it, whatever wrote it: a field is None where the format doesn't hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EXCERPT = 160
"""Characters of an example's text at most."""
MENTIONED = ("?",)
"""The tools of a prompt that speaks of tools and lists none."""


@dataclass(slots=True)
class Tokens:
    """A sequence of tokens that was trained on. The lists have the length of `ids`, unless they are wrong."""

    ids: Sequence[int]
    mask: Sequence[float]
    """Not 0 on the tokens that are trained."""
    sampled: Sequence[bool] | None = None
    """True on the tokens that the model wrote, where the format says so."""
    advantages: Sequence[float] | None = None
    decode: Callable[[int, int], str] | None = None
    """The text of a range of tokens."""
    name: str = ""
    """Which of a rollout's sequences this is; empty for the only one."""

    def excerpt(self, start: int, end: int) -> str:
        """The tokens of a range, as text where it is known."""
        if self.decode is not None:
            return quote(self.decode(start, min(end, start + 40)))
        shown = ", ".join(map(str, self.ids[start : min(end, start + 12)]))
        return f"token ids [{shown}{', …' if end - start > 12 else ''}]"


@dataclass(slots=True)
class Exchange:
    """One request to the engine: what it was given, and what it sampled."""

    prompt: Sequence[int]
    completion: Sequence[int]
    before: Sequence[object] | None = None
    """The prompt's messages in a comparable form, where the format holds them."""
    after: Sequence[object] | None = None
    """The same with the sampled message."""
    thread: Hashable = None
    """Requests of different conversations have different ones."""


@dataclass(slots=True)
class Row:
    """A rollout."""

    place: str
    """File, and line or episode."""
    step: int | None = None
    group: Hashable | None = None
    compared: bool = True
    """Whether it enters the rewards of its group: training rollouts that didn't fail do."""
    reward: float | None = None
    rewards: dict[str, float | None] = field(default_factory=dict)
    """The parts of the reward."""
    advantage: float | None = None
    tokens: list[Tokens] | None = None
    exchanges: list[Exchange] | None = None
    drifts: list[str] | None = None
    """Drifting tokens that the reader found itself; an empty list says that it looked."""
    misplaced: list[str] | None = None
    """Credit for turns or roles that the rollout doesn't have."""
    tools: tuple[str, ...] | None = None
    """The tools that were offered; `("",)` where only their existence is known, None where nothing is."""
    calls: list[str] | None = None
    """The tools that were called; an empty name where it isn't known."""
    blocks: int | None = None
    """Stretches of tool text within the trained part, where `tokens` don't say who wrote which token."""
    ended: str | None = None
    """What cut it off; None where nothing did."""
    age: int | None = None
    """Versions between the weights that sampled it and those that it was to train."""
    told: bool = True
    """Whether it holds what the model wrote."""
    unread: dict[str, str] = field(default_factory=dict)
    """By check, the field that it needs and that holds nothing usable: `completion_mask is empty`."""
    broken: dict[str, str] = field(default_factory=dict)
    """The same of fields that the format always fills: a finding of that check."""


def unusable(record: Mapping[str, Any], names: Iterable[str], usable: Callable[[Any], bool]) -> str | None:
    """The first of these fields that the record has, and what is wrong with it, such as `score is null`; None if one is
    usable, or if it has none of them."""
    held = {name: record[name] for name in names if name in record}
    if not held or any(map(usable, held.values())):
        return None
    name, value = next(((name, value) for name, value in held.items() if value is not None), next(iter(held.items())))
    return f"{name} is {_shown(value)}"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str | list | dict) and not value:
        return "empty"
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    return f"{type(value).__name__} {quote(str(value)[:60])}"


def quote(text: str) -> str:
    """A text in one line, its middle left out where it is long."""
    if len(text) > EXCERPT:
        text = f"{text[: EXCERPT // 2]} … {text[-EXCERPT // 2 :]}"
    return repr(text)
