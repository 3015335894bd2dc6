"""Checks that look at one rollout at a time.

Each yields `(problem, example)` pairs, none for a clean rollout.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from toolrl.types import common_beginning
from toolrl_plugin_audit.rows import Exchange, Row, Tokens

Found = Iterator[tuple[str, str]]

DRIFT = "a later prompt holds other tokens than those that were sampled"
MASK_OTHERS = "the mask trains tokens that the model didn't sample"
MASK_LENGTH = "tokens and mask differ in length"
MASK_TOOLS = "the mask trains the text of tools"
ADVANTAGE_OFF = "advantages stand on tokens that aren't trained"
ADVANTAGE_NUMBER = "advantages of tokens are no finite numbers"
ADVANTAGE_LENGTH = "advantages and tokens differ in length"
CREDIT = "a reward is credited to a turn or role that the rollout doesn't have"
STALE = "rollouts are older than allowed"
TRUNCATED = "truncated rollouts were rewarded"


def continuation(row: Row) -> Found:
    """Whether each prompt continues what was sampled before it, token for token."""
    yield from ((DRIFT, example) for example in row.drifts or ())
    exchanges = row.exchanges or []
    for number, later in enumerate(exchanges):
        earlier = _predecessor(exchanges[:number], later)
        if earlier is None:
            continue
        sequence = [*earlier.prompt, *earlier.completion]
        at = common_beginning(sequence, list(later.prompt), min(len(sequence), len(later.prompt)))
        if at < len(sequence):
            yield (
                DRIFT,
                (
                    f"request {number + 1} of the rollout: at token {at} of its prompt the sampled tokens "
                    f"{sequence[at : at + 8]} became {list(later.prompt[at : at + 8])}"
                ),
            )


def realigns(first: Sequence[int], second: Sequence[int], at: int) -> bool:
    """Whether two sequences that part at a token go on alike right behind it, as after a wrong or retokenised piece.

    A history that was rewritten on purpose, shortened or without its thinking, doesn't.
    """
    for skipped in range(1, 5):
        for shift in (0, -1, 1, -2, 2):
            start = at + skipped + shift
            tail = first[at + skipped : at + skipped + 8]
            if len(tail) >= 4 and start > at and list(second[start : start + len(tail)]) == list(tail):
                return True
    return False


def _predecessor(earlier: list[Exchange], later: Exchange) -> Exchange | None:
    """The last request whose conversation this one goes on with; None where it begins anew or rewrites history."""
    for one in reversed(earlier):
        if one.thread != later.thread:
            continue
        told = one.after is not None and later.before is not None
        if (
            one.after is not None
            and later.before is not None
            and list(later.before[: len(one.after)]) == list(one.after)
        ):
            return one
        if list(later.prompt[: len(one.prompt)]) != list(one.prompt) or len(later.prompt) <= len(one.prompt):
            continue
        # The same up to the sample: without messages that say otherwise, only the sample can differ.
        sequence = [*one.prompt, *one.completion]
        at = common_beginning(sequence, list(later.prompt), min(len(sequence), len(later.prompt)))
        if not told or realigns(sequence, later.prompt, at):
            return one
    return None


def masks(row: Row) -> Found:
    """Whether exactly what the model sampled is trained."""
    for it in row.tokens or ():
        if len(it.mask) != len(it.ids):
            yield MASK_LENGTH, f"{_of(it)}{len(it.ids)} tokens, a mask of {len(it.mask)}"
            continue
        if it.sampled is None:
            runs = _gaps(it.mask)
            if row.blocks and runs < row.blocks:
                yield (
                    MASK_TOOLS,
                    (
                        f"{_of(it)}tools wrote {row.blocks} stretch{'es' if row.blocks > 1 else ''} of the response, "
                        f"the mask leaves out {runs}"
                    ),
                )
            continue
        wrong = [bool(m) and not s for m, s in zip(it.mask, it.sampled, strict=True)]
        if True in wrong:
            start, end = first_run(wrong)
            yield MASK_OTHERS, f"{_of(it)}tokens {start} to {end - 1}: {it.excerpt(start, end)}"


def _gaps(mask: object) -> int:
    """Stretches that are left out between the first and the last trained token, and behind it."""
    flags = [bool(it) for it in mask]  # type: ignore[attr-defined]
    if True not in flags:
        return len(flags)
    runs = [bit for bit, _ in groupby(flags[flags.index(True) :])]
    return runs.count(False)


def first_run(flags: list[bool]) -> tuple[int, int]:
    """The first stretch of true values, as [start, end)."""
    start = flags.index(True)
    end = start
    while end < len(flags) and flags[end]:
        end += 1
    return start, end


def _of(it: Tokens) -> str:
    return f"{it.name}: " if it.name else ""


def token_advantages(row: Row) -> Found:
    """Whether advantages stand on the trained tokens and nowhere else."""
    yield from ((CREDIT, example) for example in row.misplaced or ())
    for it in row.tokens or ():
        values = it.advantages
        if values is None:
            continue
        if len(values) != len(it.ids):
            yield ADVANTAGE_LENGTH, f"{_of(it)}{len(it.ids)} tokens, {len(values)} advantages"
            continue
        if len(it.mask) != len(it.ids):
            continue  # `masks` says so.
        if endless := next((it for it in values if not math.isfinite(it)), None):
            yield ADVANTAGE_NUMBER, f"{_of(it)}an advantage of a token is {endless:g}"
            continue
        off = [bool(value) and not bit for value, bit in zip(values, it.mask, strict=True)]
        if True in off:
            start, end = first_run(off)
            yield (
                ADVANTAGE_OFF,
                f"{_of(it)}tokens {start} to {end - 1} have {values[start]:g}: {it.excerpt(start, end)}",
            )


def versions(row: Row, max_staleness: int) -> Found:
    """Whether weights are fresh enough: at most `max_staleness` versions old."""
    if row.age is not None and row.age > max_staleness:
        step = "" if row.step is None else f" {row.step}"
        yield STALE, f"sampled {row.age} versions before its step{step}; {max_staleness} are allowed"


def truncation(row: Row) -> Found:
    """Whether a rollout that was cut off got a reward."""
    if row.ended is not None and row.reward is not None and row.reward > 0:
        yield TRUNCATED, f"{row.ended}, reward {row.reward:g}"


def checks(max_staleness: int) -> dict[str, tuple[Callable[[Row], bool], Callable[[Row], Found]]]:
    """By name, whether a rollout holds what a check needs, and the check."""

    def has_advantages(row: Row) -> bool:
        return any(it.advantages is not None for it in row.tokens or ())

    return {
        "continuation": (lambda row: row.exchanges is not None or row.drifts is not None, continuation),
        "masks": (lambda row: row.tokens is not None, masks),
        "advantages": (lambda row: row.misplaced is not None or has_advantages(row), token_advantages),
        "versions": (lambda row: row.age is not None, lambda row: versions(row, max_staleness)),
        "truncation": (lambda row: row.reward is not None and row.told, truncation),
    }


def finite(value: object) -> float | None:
    """A number as a float; None for what isn't one. What isn't finite stays."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def comparable(message: object) -> object:
    """A message as it is compared: role, text and calls."""
    if not isinstance(message, dict):
        return message
    calls = message.get("tool_calls") or []
    return (message.get("role"), _plain(message.get("content") or ""), _plain(calls))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
