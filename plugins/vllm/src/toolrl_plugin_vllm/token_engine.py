"""What the engines have in common: a request is checked, a session generates once at a time, and log-probabilities of
a fixed text are compared with the trainer's."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from toolrl.errors import EngineError
from toolrl.protocols import BuildContext, WeightSource
from toolrl.types import Generation, MediaInput, Sampling

COLDEST = 0.01
"""Lower temperatures than this, but for 0, vLLM raises to it in silence."""
ALWAYS_EXACT = 2
"""Comparisons that the bound holds for in any case: at the start, and after the first update."""
FAR, ROWS_FAR = 2.0, 2
"""Multiple of the bound that chance doesn't explain, if it is passed so many times in a row."""
_log = logging.getLogger(__name__)
_MISMATCH = (
    "Train with `engine: transformers`, or raise engine.options.tolerance where the difference is rounding: compare it "
    "with logprob_mismatch/max of earlier steps."
)


class TokenEngine(ABC):
    """A `RolloutEngine` without its start, its updates and its end."""

    seeded = True
    """Whether a request has a seed of its own, with which vLLM samples it apart from the other rows of its batch."""

    def __init__(self, context: BuildContext, weights: WeightSource | None, tolerance: float | None) -> None:
        self._context = context
        self._weights = weights
        self._tolerance = tolerance
        self._random = random.Random(context.seed)
        self._max_length = 1 << 31
        self._started = False
        self._sessions: dict[str, asyncio.Task[Generation]] = {}
        self._comparisons = self._far = 0
        self.verified: float | None = None
        """How far the log-probabilities were apart when they were last compared."""

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[MediaInput] = ()
    ) -> Generation:
        """Sample after `prompt`. One generation a session at a time. Raises EngineError."""
        self._check_started()
        ids = list(prompt)
        problem = "this engine serves no images" if media else self._problem(ids, sampling)
        if problem is not None:
            raise EngineError(problem, where=f"session {session!r}")
        if session in self._sessions:
            raise EngineError(f"session {session!r} is generating already", hint="Use one session an episode.")
        seed = None
        if self.seeded:
            seed = sampling.seed if sampling.seed is not None else self._random.getrandbits(63)
        task = self._sessions[session] = asyncio.create_task(self._sample(ids, sampling, seed))
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise EngineError(f"session {session!r} was closed while it was generating") from None
        finally:
            del self._sessions[session]

    async def score(
        self, ids: Sequence[int], start: int, *, temperature: float = 1.0, media: Sequence[MediaInput] = ()
    ) -> list[float]:
        """See ScoresTokens, at temperature 1: as log-probabilities of a prompt. Raises EngineError."""
        self._check_started()
        given = list(ids)
        if media or temperature != 1:
            raise EngineError("this engine scores text at temperature 1 only")
        if not 1 <= start <= len(given) <= self.most_scored:
            raise EngineError(
                f"{len(given)} tokens to score from {start} on; the engine takes 2 to {self.most_scored}",
                hint="Lower rollout.max_episode_tokens, or let the engine's model have longer sequences.",
            )
        return list(await self._prompt_logprobs(given))[start - 1 :]

    @property
    def most_scored(self) -> int:
        """Tokens of a text that `score` takes: a request samples one more."""
        return self._max_length - 1

    async def close(self, session: str) -> None:
        """Forget a session; what it still generates fails. Its cache is the server's, which drops what is unused
        longest."""
        if session in self._sessions:
            self._sessions[session].cancel()

    async def _close_all(self) -> None:
        """End all generations, and wait until they have ended."""
        tasks = list(self._sessions.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_started(self) -> None:
        if not self._started:
            raise EngineError("the engine is not started", hint="Await start() first.")

    @abstractmethod
    async def _sample(self, ids: list[int], sampling: Sampling, seed: int | None) -> Generation:
        """Sample for a request that was checked."""

    @abstractmethod
    async def _prompt_logprobs(self, ids: list[int]) -> Sequence[float]:
        """Of each token but the first, at temperature 1."""

    def _problem(self, prompt: Sequence[int], sampling: Sampling) -> str | None:
        """Why a request can't be served, or None."""
        if not prompt:
            return "the prompt is empty"
        if sampling.keep_masks:
            return "this engine records no sampling masks"
        if 0 < sampling.temperature < COLDEST:
            return f"temperature is {sampling.temperature}; vLLM samples at {COLDEST} or more, or at 0"
        total = len(prompt) + sampling.max_new_tokens
        if total > self._max_length:
            return (
                f"a prompt of {len(prompt)} tokens and max_new_tokens {sampling.max_new_tokens} are {total}, more than "
                f"the {self._max_length} that an episode may have"
            )
        return None

    async def _compare(self, owner: str, *, digests: bool = False) -> None:
        """Compare log-probabilities of a text with the trainer's. Raises EngineError if they differ.

        In 16-bit types the distance is chance in part, drawn anew at each update: near its bound a good run would end
        sooner or later. So if digests were compared as well (`digests`), from the third comparison on only a distance
        far above the bound, and twice in a row, is an error. Others are a warning. A bound that the user gave holds in
        any case.
        """
        # Here, since without a trainer an engine needs no torch.
        from toolrl_plugin_torch.probe import LogprobsDifferError, check_logprobs

        assert self._weights is not None
        probe = await asyncio.to_thread(self._weights.probe)
        found = await self._prompt_logprobs(list(probe.ids[: self._max_length - 1]))
        self._comparisons += 1
        try:
            self.verified = check_logprobs(found, probe, tolerance=self._tolerance, owner=owner, hint=_MISMATCH)
        except LogprobsDifferError as error:
            self.verified = error.apart
            self._far = self._far + 1 if error.apart > FAR * error.allowed else 0
            chance = digests and probe.rounding is not None and self._tolerance is None
            by_chance = chance and math.isfinite(error.apart)
            if not by_chance or self._comparisons <= ALWAYS_EXACT or self._far >= ROWS_FAR:
                raise
            _log.warning("%s. Digests of its tensors are the trainer's, so the run goes on.", error.message)
        else:
            self._far = 0
