"""Contracts of rollout engines, on a small model: counts, stops, seeds, sessions, cancellation, weight versions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from toolrl.protocols import ChatFormat, RolloutEngine, WeightSource
from toolrl.types import Generation, Sampling
from toolrl_testing.checks import fail, require

_PATIENCE = 300.0
"""Seconds after which a generation counts as stuck."""


def check_generation(generation: Generation, sampling: Sampling) -> None:
    """One generation holds together."""
    n = len(generation.ids)
    require(len(generation.logprobs) == n, f"{n} ids and {len(generation.logprobs)} log-probabilities")
    require(len(generation.versions) == n, f"{n} ids and {len(generation.versions)} weight versions")
    require(n <= sampling.max_new_tokens, f"{n} ids, max_new_tokens is {sampling.max_new_tokens}")
    require(
        all(math.isfinite(value) and value <= 1e-6 for value in generation.logprobs),
        f"log-probabilities have to be finite and at most 0: {generation.logprobs}",
    )
    stopped = generation.stopped_by is not None
    require(stopped == (generation.finish == "stop"), f"finish {generation.finish!r}, {generation.stopped_by!r}")
    if generation.finish == "length":
        require(n == sampling.max_new_tokens, f"finish 'length' after {n} of {sampling.max_new_tokens} tokens")


async def check_sampling(engine: RolloutEngine, prompt: Sequence[int]) -> None:
    """A seed settles a sample, alone and beside others; greedy needs none."""
    sampling = Sampling(12, temperature=1.0, seed=11)
    first = await _generate(engine, prompt, sampling, "seed-a")
    check_generation(first, sampling)
    again = await _generate(engine, prompt, sampling, "seed-b")
    require(again.ids == first.ids, f"one seed gave {first.ids} and {again.ids}")
    others = [Sampling(12, temperature=1.0, seed=seed) for seed in (11, 12, 13, 14, 11, 15)]
    crowd = await asyncio.gather(*(_generate(engine, prompt, s, f"crowd-{n}") for n, s in enumerate(others)))
    for one, settings in zip(crowd, others, strict=True):
        check_generation(one, settings)
        if settings.seed == 11:
            require(one.ids == first.ids, f"seed 11 gave {first.ids} alone and {one.ids} beside others")
    greedy = Sampling(12, temperature=0.0)
    pair = [await _generate(engine, prompt, greedy, f"greedy-{n}") for n in range(2)]
    require(pair[0].ids == pair[1].ids, f"greedy gave {pair[0].ids} and {pair[1].ids}")


async def check_stops(engine: RolloutEngine, prompt: Sequence[int], chat: ChatFormat) -> None:
    """Stop ids and stop strings end a generation with the token that completes them, which is kept."""
    free = await _generate(engine, prompt, Sampling(16, temperature=0.0), "free")
    for place in (0, len(free.ids) // 2):
        wanted = free.ids[place]
        cut = await _generate(engine, prompt, Sampling(16, temperature=0.0, stop_token_ids=(wanted,)), f"id-{place}")
        expected = free.ids[: free.ids.index(wanted) + 1]
        require(cut.ids == expected, f"stop id {wanted}: {cut.ids} instead of {expected}")
        require((cut.finish, cut.stopped_by) == ("stop", wanted), f"stop id {wanted}: stopped by {cut.stopped_by!r}")
    decoded = chat.decode(free.ids)
    for start, width in ((len(decoded.text) // 2, 1), (len(decoded.text) // 2, 3), (0, 2)):
        stop = decoded.text[start : start + width]
        if not stop.strip() or "\ufffd" in stop:
            continue
        end = decoded.text.find(stop) + len(stop)
        expected = free.ids[: next(i for i, offset in enumerate(decoded.offsets) if offset >= end)]
        cut = await _generate(engine, prompt, Sampling(16, temperature=0.0, stop=(stop,)), f"text-{start}-{width}")
        require(cut.ids == expected, f"stop {stop!r}: {cut.ids} instead of {expected}")
        require((cut.finish, cut.stopped_by) == ("stop", stop), f"stop {stop!r}: stopped by {cut.stopped_by!r}")


async def check_sessions(engine: RolloutEngine, prompt: Sequence[int]) -> None:
    """Going on in a session gives what the whole prompt gives anew; closing twice, or what isn't there, is fine."""
    greedy = Sampling(8, temperature=0.0)
    first = await _generate(engine, prompt, greedy, "session", close=False)
    longer = (*prompt, *first.ids, *prompt[-3:])
    continued = await _generate(engine, longer, greedy, "session")
    anew = await _generate(engine, longer, greedy, "another")
    require(continued.ids == anew.ids, f"in the session {continued.ids}, anew {anew.ids}")
    worst = max((abs(a - b) for a, b in zip(continued.logprobs, anew.logprobs, strict=True)), default=0.0)
    require(worst < 1e-2, f"log-probabilities in the session and anew differ by {worst:g}")
    await engine.close("session")
    await engine.close("never opened")


async def check_cancel(engine: RolloutEngine, prompt: Sequence[int], *, times: int = 100) -> None:
    """Cancelled generations free their places: after many of them the engine answers as before."""
    sampling = Sampling(64, temperature=1.0, seed=1)
    expected = await _generate(engine, prompt, Sampling(4, temperature=0.0), "before")
    for number in range(0, times, 10):
        batch = [
            asyncio.ensure_future(engine.generate(prompt, sampling, session=f"cancelled-{n}"))
            for n in range(number, number + 10)
        ]
        await asyncio.sleep(0.005)
        for task in batch:
            task.cancel()
        await asyncio.gather(*batch, return_exceptions=True)
        for n in range(number, number + 10):
            await engine.close(f"cancelled-{n}")
    after = await _generate(engine, prompt, Sampling(4, temperature=0.0), "after")
    require(after.ids == expected.ids, f"after {times} cancellations {after.ids}, before {expected.ids}")


async def check_versions(engine: RolloutEngine, prompt: Sequence[int], weights: WeightSource) -> None:
    """After `update_weights` returns, every token carries the new version."""
    await engine.update_weights(weights, 7)
    generation = await _generate(engine, prompt, Sampling(4, temperature=0.0), "version")
    require(set(generation.versions) == {7}, f"after an update to version 7 tokens carry {generation.versions}")


async def _generate(
    engine: RolloutEngine, prompt: Sequence[int], sampling: Sampling, session: str, *, close: bool = True
) -> Generation:
    try:
        async with asyncio.timeout(_PATIENCE):
            generation = await engine.generate(tuple(prompt), sampling, session=session)
    except TimeoutError:
        fail(f"a generation is stuck: session {session!r} had no answer within {_PATIENCE:g} s")
    if close:
        await engine.close(session)
    return generation
