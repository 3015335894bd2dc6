"""Rows of `rollouts.bin`, the batches that prime-rl's orchestrator sends to its trainer over the file system.

A msgpack array that msgspec makes of `TrainingBatch` (prime_rl/transport/types.py, array_like): the samples come first,
each an array whose first five fields have stayed: prompt_ids, prompt_mask, completion_ids, completion_mask,
completion_logprobs. Later versions have one sequence instead: token_ids, mask, logprobs, temperatures, env_name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolrl.errors import DataError
from toolrl_plugin_audit.formats.flat import numbers
from toolrl_plugin_audit.rows import Row, Tokens

_NO_TEXT = "rollouts.bin holds tokens and masks, no texts"
LACKS = {
    "continuation": "rollouts.bin holds finished sequences; train_rollouts.jsonl has the requests",
    "advantages": "this version of rollouts.bin has no advantage for each token",
    "versions": "rollouts.bin doesn't say which weights sampled a token",
    "tools": _NO_TEXT,
    "answers": _NO_TEXT,
    "rewards": "rollouts.bin doesn't say which samples are one group",
    "truncation": "rollouts.bin doesn't say how a rollout ended",
}


def _load(path: Path) -> Any:
    import msgpack  # type: ignore[import-untyped]

    with path.open("rb") as file:
        return msgpack.unpack(file, strict_map_key=False)


def is_batch(path: Path) -> bool:
    """Whether a file is such a batch, by its name and first byte (a msgpack array)."""
    if path.name != "rollouts.bin" and path.name != "train_rollouts.bin":
        return False
    with path.open("rb") as file:
        head = file.read(1)
    return bool(head) and (head[0] & 0xF0 == 0x90 or head[0] in (0xDC, 0xDD))


def binary_rows(path: Path, shown: str) -> Iterator[Row]:
    """The samples of a batch."""
    try:
        samples = _load(path)[0]
    except (ValueError, IndexError, TypeError, OSError) as error:
        raise DataError(
            f"this batch of prime-rl's can't be read: {type(error).__name__}: {error}", where=str(path),
            hint="A kill while it was written leaves half of one: delete or move it to continue without it.",
        ) from error  # fmt: skip
    step = re.search(r"step_(\d+)", str(path))
    for number, sample in enumerate(samples if isinstance(samples, list) else ()):
        row = Row(f"{shown}, sample {number}", int(step[1]) if step else None, compared=False)
        tokens = _tokens(sample) if isinstance(sample, list) else None
        row.tokens = None if tokens is None else [tokens]
        yield row


def _tokens(sample: list[Any]) -> Tokens | None:
    lists = [it if isinstance(it, list) else None for it in sample]
    if len(lists) >= 5 and all(it is not None for it in lists[:5]):
        ids, mask = [*sample[0], *sample[2]], [*sample[1], *sample[3]]
        sampled = [False] * len(sample[0]) + [True] * len(sample[2])
        return Tokens(ids, mask, sampled)
    if len(lists) >= 3 and lists[0] is not None and lists[1] is not None:
        given = [numbers(it) for it in lists[5:] if it and len(it) == len(lists[0]) and not isinstance(it[0], bool)]
        advantages = next((it for it in given if it is not None), None)
        return Tokens(lists[0], lists[1], advantages=_streams(sample) or advantages if len(sample) > 5 else None)
    return None


def _streams(sample: list[Any]) -> list[float] | None:
    """The first stream of `advantages: list[TrainingAdvantage]`, an array of loss, values and mask each."""
    for it in sample[5:]:
        if isinstance(it, list) and it and isinstance(it[0], list) and len(it[0]) == 3 and isinstance(it[0][0], str):
            return numbers(it[0][1])
    return None
