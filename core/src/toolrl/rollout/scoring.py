"""What rewards say of finished episodes: of one when it has ended, or of a whole group when its last one has.

A reward is asked on the event loop where it is a coroutine function; a plain function runs in a thread, one call of a
reward at a time, so that it may compute and wait without holding up the episodes. A reward that scores groups is asked
once for all episodes of a task. What it raises, or gives instead of a score, fails episodes and loses none; so does
one that takes longer than its `timeout`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from toolrl.errors import RewardError
from toolrl.protocols import ScoresGroups
from toolrl.rollout.one_at_a_time import StuckError
from toolrl.rollout.rewards import EpisodeReward, NamedReward, failure_of, reward_raised
from toolrl.tools import cancellation
from toolrl.tools.cancellation import Watch
from toolrl.tools.loop_watch import call_component, run_component
from toolrl.tools.threads import POOL, Job
from toolrl.types import Episode

_log = logging.getLogger(__name__)


async def score_of(named: NamedReward, episode: Episode) -> Any:
    """What a reward gives for one episode. Raises RewardError."""
    return await _asked(named, "score", episode)


async def scored_together(
    episodes: Sequence[Episode], rewards: Sequence[NamedReward], hide: Callable[[str], str] = str
) -> list[Episode]:
    """The episodes of one group, in order, with what each reward that scores groups says of those that didn't fail."""
    found = list(episodes)
    for named in rewards:
        places = [place for place, episode in enumerate(found) if episode.failure is None]
        if not isinstance(named.reward, ScoresGroups) or not places:
            continue
        for place, score in zip(places, await _group_scores(named, [found[it] for it in places]), strict=True):
            found[place] = _settled(found[place], named, score, rewards, hide)
    return found


async def _group_scores(named: NamedReward, episodes: Sequence[Episode]) -> Sequence[Any]:
    """A score or an exception for each episode."""
    try:
        scores = await _asked(named, "score_group", tuple(episodes))
        if not isinstance(scores, Sequence) or len(scores) != len(episodes):
            given = f"{len(scores)} scores" if isinstance(scores, Sequence) else type(scores).__name__
            raise RewardError(f"reward {named.name!r} gave {given} for {len(episodes)} episodes, expected one for each")
        scores = [scores[place] for place in range(len(episodes))]
    except Exception as error:  # noqa: BLE001 - `_asked` told it from a cancellation: it is these episodes' data
        return [error] * len(episodes)
    return scores


def _settled(
    episode: Episode, named: NamedReward, score: Any, rewards: Sequence[NamedReward], hide: Callable[[str], str]
) -> Episode:
    """The episode with a score, or failed."""
    try:
        if isinstance(score, BaseException):
            raise score if isinstance(score, RewardError) else reward_raised(named, score) from score
        reward = EpisodeReward.of(episode, rewards)
        reward.add_score(named, score, len(episode.turns))
        reward.check()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this episode's data
        return replace(episode, failure=failure_of(error, "reward", hide), stop_reason="error")
    return reward.put_on(episode)


async def _asked(named: NamedReward, method: str, argument: Any) -> Any:
    """What a reward's method gives. Raises RewardError."""
    function = getattr(named.reward, method)
    watch = Watch()
    try:
        if inspect.iscoroutinefunction(function):
            return await _stoppable(named, function, argument)
        result = await _in_thread(named, function, argument)
        return await _stoppable(named, lambda: result) if inspect.isawaitable(result) else result
    except RewardError:
        raise
    except cancellation.TooLateError:
        raise RewardError(
            f"reward {named.name!r} gave no score within {named.timeout:g} s",
            hint="Find out what it waits for, or raise its `timeout` in the config.",
        ) from None
    except StuckError:
        raise RewardError(
            f"reward {named.name!r} can't score: an earlier call has run for more than {named.timeout:g} s",
            hint="Find out what it waits for. A coroutine function can be stopped, a plain one can't.",
        ) from None
    except BaseException as error:
        if not watch.failed(error):
            raise
        raise reward_raised(named, error) from error


async def _stoppable(named: NamedReward, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """The value of a reward's coroutine. One that swallows its cancellation must not hold up the end of a run."""

    def left(_: asyncio.Task[Any]) -> None:
        _log.warning(
            "reward %r was cancelled and didn't end within %g s; it is left to itself. "
            "Don't catch asyncio.CancelledError in a reward, or raise it again.",
            named.name,
            cancellation.CLEANUP_SECONDS,
        )

    work = run_component(f"reward {named.name!r}", function, *args)
    return await cancellation.stoppable(work, left, named.timeout)


async def _in_thread(named: NamedReward, function: Callable[[Any], Any], argument: Any) -> Any:
    # One at a time: a component is never used from two threads at once.
    await named.turn.begin()
    try:
        job = POOL.submit(call_component, function, argument)
    except BaseException:
        named.turn.end()
        raise
    # Where the episode is cancelled, or the time is up, the function runs on, and nobody else may begin before it has
    # ended. How long it holds up others has its limit also where nobody waits for it any more.
    seconds = named.timeout
    late = None if seconds is None else asyncio.get_running_loop().call_later(seconds, _give_up, named, job)

    def ended() -> None:
        if late is not None:
            late.cancel()
        named.turn.end()

    job.when_ended(ended)
    try:
        return await _stoppable(named, lambda: job)
    except cancellation.TooLateError:
        _give_up(named, job)
        raise


def _give_up(named: NamedReward, job: Job[Any]) -> None:
    if not job.ended:
        named.turn.give_up()
