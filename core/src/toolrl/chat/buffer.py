"""An episode's tokens: appended, never changed.

Three things can happen to the sequence: the prompt comes first and once, an engine samples, and toolrl gives (a bridge
to the next turn, or a tool's result inside a turn). There is no way to take a token back or to replace one, and each
prompt is made of the one before it and what came since, so the prompt of turn k+1 is prompt k, what was sampled, and
the bridge. What an engine brings back is checked as it arrives, always, at the cost of a pass over the new tokens;
`check` goes over everything once more when the episode is finished.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from toolrl.errors import ExactnessError
from toolrl.types import Trajectory

MAX_LOGPROB = 1e-4
"""A log-probability may exceed 0 by rounding only."""

Origin = Literal["prompt", "sampled", "given"]


class TokenBuffer:
    """Ids with loss mask, log-probabilities and weight versions, all of one length. One episode, one owner."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._loss_mask: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._pieces: list[tuple[Origin, int]] = []
        self._handed_out: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._ids)

    def copy(self) -> TokenBuffer:
        """Another one with the same tokens."""
        other = TokenBuffer()
        for name, value in vars(self).items():
            setattr(other, name, value[:])
        return other

    # Appending.

    def prompt(self, ids: Sequence[int]) -> None:
        """The first prompt. Raises ExactnessError if there is one already, or if it is empty."""
        if self._pieces:
            raise ExactnessError("an episode has one prompt, and this buffer has its own already")
        if not ids:
            raise ExactnessError("the prompt has no tokens")
        self._append("prompt", ids)

    def given(self, ids: Sequence[int]) -> None:
        """Tokens that the model reads but did not sample: a bridge, or a result inside a turn."""
        self._needs_prompt("given")
        self._append("given", ids)

    def sampled(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """What an engine sampled after `self.ids`. Raises ExactnessError unless there is one finite log-probability and
        one weight version for each id."""
        self._needs_prompt("sampled")
        count = len(ids)
        if len(logprobs) != count or len(versions) != count:
            raise ExactnessError(
                f"the engine gave {count} ids, {len(logprobs)} log-probabilities and {len(versions)} weight versions"
            )
        if count == 0:
            return
        values = [float(value) for value in logprobs]
        for position, value in enumerate(values):
            if not math.isfinite(value) or value > MAX_LOGPROB:
                raise ExactnessError(
                    f"the engine's log-probability of sampled token {position} (id {ids[position]}) is {value}"
                )
        if min(versions) < 0:
            raise ExactnessError(f"the engine gave weight version {min(versions)}")
        self._append("sampled", ids, values, versions)

    def _append(
        self, origin: Origin, ids: Sequence[int], logprobs: Sequence[float] | None = None, versions: Sequence[int] = ()
    ) -> None:
        count = len(ids)
        if count == 0:
            return
        if min(ids) < 0:
            raise ExactnessError(f"{origin} token id {min(ids)} is negative")
        self._ids += ids
        self._loss_mask += [int(origin == "sampled")] * count
        self._logprobs += [0.0] * count if logprobs is None else logprobs
        self._versions += versions or [-1] * count
        self._pieces.append((origin, count))

    def _needs_prompt(self, what: str) -> None:
        if not self._pieces:
            raise ExactnessError(f"{what} tokens came before the prompt")

    # Reading.

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens so far: what the next generation is conditioned on. Immutable, so that no engine can change what
        the trainer will see, and made of the prompt before it and what came since: one copy after each change."""
        known = len(self._handed_out)
        if known != len(self._ids):
            self._handed_out += tuple(self._ids[known:])
        return self._handed_out

    def trajectory(self) -> Trajectory:
        """The tokens as a trajectory without turns. Raises ExactnessError, see `check`."""
        self.check()
        # Where nothing was sampled, all of them are the prompt.
        prompt = [*self._loss_mask, 1].index(1)
        return Trajectory(self.ids, tuple(self._loss_mask), tuple(self._logprobs), tuple(self._versions), prompt)

    def check(self) -> None:
        """Go over the whole sequence: equal lengths, mask 1 exactly on the sampled pieces, log-probability 0.0 and
        version −1 exactly on the others. Raises ExactnessError. Linear; for the end of an episode and for tests."""
        total = len(self._ids)
        if not len(self._loss_mask) == len(self._logprobs) == len(self._versions) == total:
            raise ExactnessError("ids, loss mask, log-probabilities and weight versions differ in length")
        start = 0
        for origin, count in self._pieces:
            self._check_piece(start, start + count, sampled=origin == "sampled")
            start += count
        if start != total:
            raise ExactnessError(f"{total} tokens are there, and {start} were appended")
        if self.ids != tuple(self._ids):
            raise ExactnessError("tokens changed after an engine was given them as its prompt")

    def _check_piece(self, start: int, end: int, *, sampled: bool) -> None:
        count = end - start
        if self._loss_mask[start:end] != [int(sampled)] * count:
            raise ExactnessError(f"the loss mask of tokens {start} to {end} isn't 1 exactly where they were sampled")
        if sampled and min(self._versions[start:end]) < 0:
            raise ExactnessError(f"of the sampled tokens {start} to {end} some have no weight version")
        if not sampled and (any(self._logprobs[start:end]) or self._versions[start:end] != [-1] * count):
            raise ExactnessError(f"tokens {start} to {end} weren't sampled, but have log-probabilities or versions")
