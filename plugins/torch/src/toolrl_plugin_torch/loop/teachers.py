"""Teachers of on-policy distillation: engines on other models, which score the tokens that the policy sampled.

Groups are scored as they are sampled: all of a step, or each as it ends where rollout and training overlap, so that
groups that are replayed have their scores already. Ranks score a share of the groups each.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from toolrl.assembly import Assembly, model_source
from toolrl.config.model import TeacherConfig
from toolrl.errors import ConfigError, EngineError
from toolrl.loop.ranks import ONE, Ranks
from toolrl.protocols import ScoresTokens
from toolrl.rollouts.environment import Limits
from toolrl.rollouts.source import GroupSource
from toolrl.types import Episode, Group, Task, Trajectory
from toolrl_plugin_torch.policy import PolicyModel, load_policy
from toolrl_plugin_torch.sharding.rank_rollout import Rank0Rollout

_log = logging.getLogger(__name__)
PAUSES = (1.0, 10.0, 60.0)
"""Seconds before each further attempt to score a trajectory."""
_WHERE = "algorithm.distillation.teachers"
_TEXT = "Hello, world! 3.14 × 271828 = ∞\n\tdef f(x):\n    return x ** 2  # été 你好\n"
_Scores = Mapping[tuple[str, int], tuple[float, ...]]
"""By episode and place of the trajectory in it."""


@dataclass
class Teachers:
    """Engines by environment, `default` for all others."""

    engines: Mapping[str, ScoresTokens]
    concurrency: int
    """Trajectories that are scored at once."""
    _seconds: float = field(default=0.0, init=False)

    def metrics(self) -> dict[str, float]:
        """Since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return {"time/teacher": seconds} if seconds else {}

    async def scores(self, groups: Iterable[Group]) -> _Scores:
        """Of the trained trajectories that have none yet. Raises EngineError."""
        started = time.perf_counter()
        wanted = [
            (episode, place)
            for group in groups
            for episode in group.scored
            for place, it in enumerate(episode.trajectories)
            if it.trained and any(it.loss_mask) and it.teacher_logprobs is None and self._of(episode) is not None
        ]
        found: dict[tuple[str, int], tuple[float, ...]] = {}
        # Rounds, not a semaphore: what meets in an engine's batch doesn't depend on time then.
        for first in range(0, len(wanted), self.concurrency):
            part = wanted[first : first + self.concurrency]
            scored = await asyncio.gather(*(self._score(episode, place) for episode, place in part))
            found |= {(episode.id, place): it for (episode, place), it in zip(part, scored, strict=True)}
        self._seconds += time.perf_counter() - started
        return found

    def _of(self, episode: Episode) -> str | None:
        """The name of an episode's teacher."""
        return next((name for name in (episode.environment, "default") if name in self.engines), None)

    async def _score(self, episode: Episode, place: int) -> tuple[float, ...]:
        name = str(self._of(episode))
        it = episode.trajectories[place]
        for pause in (*PAUSES, None):
            try:
                return await self._ask(self.engines[name], it)
            except EngineError as error:
                if pause is None:
                    error.where = error.where or f"{_WHERE}.{name}"
                    raise
                _log.warning("%s.%s: %s; asked again in %g s", _WHERE, name, error.message, pause)
                await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    @staticmethod
    async def _ask(engine: ScoresTokens, it: Trajectory) -> tuple[float, ...]:
        start, end = it.loss_mask.index(1), len(it.loss_mask) - it.loss_mask[::-1].index(1)
        values = list(await engine.score(it.ids[:end], start, media=it.media))
        if len(values) != end - start or not all(map(math.isfinite, values)):
            raise EngineError(
                f"the teacher gave {len(values)} log-probabilities of {end - start} tokens, or not finite"
            )
        sampled = [value if bit else 0.0 for value, bit in zip(values, it.loss_mask[start:end], strict=True)]
        return (*[0.0] * start, *sampled, *[0.0] * (len(it.ids) - end))


class TaughtGroups:
    """A `GroupSource` whose groups are scored by their teachers."""

    def __init__(self, source: GroupSource, teachers: Teachers, ranks: Ranks = ONE) -> None:
        self._source, self._teachers, self._ranks = source, teachers, ranks
        self.gate, self.notify, self.check = source.gate, source.notify, source.check

    async def run(
        self, tasks: Sequence[Task], group_size: int, limits: Limits, *, round_id: str, training: bool = True
    ) -> list[Group]:
        """See SamplesRounds. Raises EngineError."""
        groups = await self._source.run(tasks, group_size, limits, round_id=round_id, training=training)
        mine = self._teachers.scores(groups[self._ranks.rank :: self._ranks.size])
        parts = await self._ranks.all_of(mine, f"the teachers' scores of {round_id}")
        scores = {key: value for part in parts for key, value in part.items()}
        return [_with_scores(group, scores) for group in groups]

    async def group(self, *arguments: Any, **options: Any) -> Group:
        """See GroupSource. Raises EngineError."""
        group = await self._source.group(*arguments, **options)
        return _with_scores(group, await self._teachers.scores([group]))


def _with_scores(group: Group, scores: _Scores) -> Group:
    episodes = tuple(
        replace(
            episode,
            trajectories=tuple(
                replace(it, teacher_logprobs=scores.get((episode.id, place), it.teacher_logprobs))
                for place, it in enumerate(episode.trajectories)
            ),
        )
        for episode in group.episodes
    )
    return replace(group, episodes=episodes)


@asynccontextmanager
async def started_teachers(assembly: Assembly) -> AsyncIterator[Teachers | None]:
    """The config's teachers, started; None without distillation, and on ranks that another one samples for. Raises
    ConfigError, EngineError."""
    config, runner = assembly.config, assembly.runner
    distillation = config.algorithm.distillation
    if distillation is None or (isinstance(runner, Rank0Rollout) and runner.sampler is None):
        yield None
        return
    async with AsyncExitStack() as stack:
        engines: dict[str, ScoresTokens] = {}
        for name, teacher in distillation.teachers.items():
            engine = _engine(assembly, teacher, f"{_WHERE}.{name}")
            stack.push_async_callback(engine.stop)
            try:
                await engine.start()
            except EngineError as error:
                error.where = error.where or f"{_WHERE}.{name}.engine"
                raise
            if teacher.model is None:  # A server holds it.
                await _check_same_ids(assembly.model.tokenizer, engine, f"{_WHERE}.{name}")
            engines[name] = engine
        yield Teachers(engines, config.rollout.concurrency)


def _engine(assembly: Assembly, teacher: TeacherConfig, where: str) -> Any:
    settings: Any = assembly.config.model
    student: Any = assembly.model
    more: dict[str, Any] = {}
    if teacher.model is not None:
        source = model_source(teacher.model, f"{where}.model")
        plain = {"lora": None, "compile": False, "gradient_checkpointing": False}
        policy = load_policy(settings.model_copy(update=plain), source, student.device, longest=student.longest)
        _check_same_words(student, policy, f"{where}.model")
        more = {"weights": policy.weights(0, assembly.folder.directory), "dtype": policy.dtype}
    engine = assembly.build("engines", teacher.engine, f"{where}.engine", **more)
    if not isinstance(engine, ScoresTokens):
        raise ConfigError(
            f"{where}.engine: {teacher.engine.use!r} gives no log-probabilities of given tokens",
            hint="Take `transformers`, `vllm`, or a server by `openai`.",
        )
    return engine


def _check_same_words(student: Any, teacher: PolicyModel, where: str) -> None:
    """Raises ConfigError where a token of the policy has another id in the teacher's vocabulary."""
    ours, theirs = student.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    others = sorted((number, token) for token, number in ours.items() if theirs.get(token) != number)
    if others:
        number, token = others[0]
        raise ConfigError(
            f"{where}: {len(others)} of the policy's {len(ours)} tokens have another id, or none, in the teacher's "
            f"vocabulary: {token!r} is {number} for the policy and {theirs.get(token, 'none')} for the teacher",
            hint="Take a teacher with the policy's tokenizer, usually one of the same family.",
        )


async def _check_same_ids(tokenizer: Any, engine: Any, where: str) -> None:
    """Compare the ids of a text with those of a server's tokenizer. Raises ConfigError where they differ; logs where
    nothing can be compared."""
    ids = range(0, len(tokenizer), max(len(tokenizer) // 500, 1))
    text = f"{_TEXT}{tokenizer.decode(list(ids))}{''.join(tokenizer.all_special_tokens)}"
    found = await engine.tokenize(text) if hasattr(engine, "tokenize") else None
    if found is None:
        _log.warning("%s: its tokenizer isn't compared with the policy's, as the server has no /tokenize", where)
        return
    ours = tokenizer.encode(text, add_special_tokens=False)
    if found != ours:
        place = next((n for n, pair in enumerate(zip(ours, found, strict=False)) if pair[0] != pair[1]), len(ours))
        raise ConfigError(
            f"{where}: the server's tokenizer isn't the policy's: after {tokenizer.decode(ours[:place])!r:.80} a text "
            f"goes on with other ids",
            hint="Take a teacher with the policy's tokenizer, usually one of the same family.",
        )
