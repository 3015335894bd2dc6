"""What is trained is what was sampled, token for token: 500 episodes of a real engine with real tools, several turns.

An ordinary run takes the tiny model; `nox -s slow` also takes Qwen2.5-Coder-0.5B-Instruct, which calls its tool of its
own accord, though not always in the form that its template asks for, where TOOLRL_QWEN_CODER names its folder. `-rP`
prints the figures.

A recorder stands between the rollout and the real embedded engine and keeps every prompt and every sample, by episode
and in order. Halfway the engine is given new weights while requests are in flight. Afterwards every episode is compared
with the record, id for id: see `check_episode`.

Two of the figures say why. `not_canonical` counts the sampled sequences whose text, encoded again, gives other ids: a
trainer that keeps texts trains on ids that were never sampled. `rendered_otherwise` counts the episodes of several
turns whose last prompt, rendered anew from the messages, differs from the prompt that the model answered.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from toolrl.assembly import assemble
from toolrl.config.load import load_config
from toolrl.plugins.registry import load_registry
from toolrl.protocols import EpisodeContext
from toolrl.rollouts.environment import Environment
from toolrl.rollouts.runner import Runner
from toolrl.types import Episode, Generation, Sampling, ToolCall
from toolrl_testing.fakes import Generated

CODER = os.environ.get("TOOLRL_QWEN_CODER")
TASKS, GROUP = 125, 4


class Recorder:
    """An engine that passes everything on to another and keeps what was asked and answered, by session in order.

    `halfway` is awaited once, after so many generations, while others are in flight.
    """

    def __init__(self, engine: Any, after: int = 0, halfway: Callable[[], Any] | None = None) -> None:
        self._engine = engine
        self._left = after
        self._halfway = halfway
        self.generated: defaultdict[str, list[Generated]] = defaultdict(list)
        self.in_flight = 0
        self.in_flight_at_update = 0

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation:
        asked = tuple(prompt)
        self.in_flight += 1
        try:
            generation: Generation = await self._engine.generate(prompt, sampling, session=session, media=media)
        finally:
            self.in_flight -= 1
        self.generated[session].append(Generated(session, asked, sampling, generation))
        self._left -= 1
        if self._left == 0 and self._halfway is not None:
            self.in_flight_at_update = self.in_flight
            await self._halfway()
        return generation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@dataclass
class Figures:
    """What was checked."""

    episodes: int = 0
    turns: int = 0
    calls: int = 0
    answered_errors: int = 0
    """Items that couldn't be read as a call, or whose call failed."""
    sequences: int = 0
    """Generations."""
    sampled_tokens: int = 0
    given_tokens: int = 0
    """Prompts, results and what stands around them."""
    not_canonical: int = 0
    """Sequences that are other ids after decoding and encoding."""
    several_turns: int = 0
    """Episodes of two turns or more."""
    rendered_otherwise: int = 0
    """Of these, those whose last prompt is other ids where it is rendered anew from the messages."""
    mixed_versions: int = 0
    """Episodes with tokens of two weight versions."""
    in_flight_at_update: int = 0


def check_episode(episode: Episode, generated: Sequence[Generated]) -> None:
    """Raise AssertionError unless an episode is exactly what its engine was asked and answered, bit for bit and in
    order: ids, mask, log-probabilities and weight versions, and each prompt is the one before it, the sample, and what
    came since."""
    assert episode.failure is None, episode.failure
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for one in generated:
        assert one.prompt[: len(ids)] == tuple(ids), "a prompt doesn't begin with what was there before"
        given = len(one.prompt) - len(ids)
        assert given > 0 or one is not generated[0]
        sample = one.generation
        assert len(sample.ids) == len(sample.logprobs) == len(sample.versions) > 0
        ids = [*one.prompt, *sample.ids]
        mask += [0] * given + [1] * len(sample.ids)
        logprobs += [0.0] * given + [*sample.logprobs]
        versions += [-1] * given + [*sample.versions]
    assert generated
    assert episode.ids == tuple(ids)
    assert episode.loss_mask == tuple(mask)
    assert episode.logprobs == tuple(logprobs)
    assert episode.weight_versions == tuple(versions)
    assert episode.prompt_length == len(generated[0].prompt)
    trained = [token for token, bit in zip(episode.ids, episode.loss_mask, strict=True) if bit]
    assert trained == [token for one in generated for token in one.generation.ids]


async def _prove(config: str) -> Figures:
    registry = load_registry()
    loaded = load_config(config, [], registry=registry)
    async with assemble(loaded, registry, total_steps=1, resume=None, overwrite=True, observers=()) as run:

        async def update() -> None:
            async with run.engine.hold():  # type: ignore[attr-defined]
                await run.engine.update_weights(run.model.weights(1), 1)

        recorder = Recorder(run.engine, TASKS * GROUP, update)
        runner = Runner(recorder, run.environments, concurrency=run.config.rollout.concurrency, seed=run.config.seed)
        groups = await runner.run(run.order().take(0, TASKS), GROUP, run.limits, round_id="proof")
        episodes = [episode for group in groups for episode in group.episodes]
        figures = Figures(in_flight_at_update=recorder.in_flight_at_update)
        assert set(recorder.generated) == {episode.id for episode in episodes}
        for episode in episodes:
            generated = recorder.generated[episode.id]
            check_episode(episode, generated)
            _count(figures, episode, generated, run.model.tokenizer)
            if len(episode.turns) > 1:
                prompt = await _rendered_again(run.environments[episode.environment], episode)
                figures.several_turns += 1
                figures.rendered_otherwise += prompt != generated[-1].prompt
    return figures


def _count(figures: Figures, episode: Episode, generated: Sequence[Generated], tokenizer: Any) -> None:
    figures.episodes += 1
    figures.turns += len(episode.turns)
    figures.calls += sum(isinstance(record.call, ToolCall) for record in episode.calls)
    figures.answered_errors += sum(record.result.error is not None for record in episode.calls)
    figures.sequences += len(generated)
    figures.sampled_tokens += episode.sampled_tokens
    figures.given_tokens += len(episode.ids) - episode.sampled_tokens
    figures.not_canonical += sum(
        _encoded_again(tokenizer, one.generation.ids) != one.generation.ids for one in generated
    )
    figures.mixed_versions += len({version for version in episode.weight_versions if version >= 0}) > 1


def _encoded_again(tokenizer: Any, ids: Sequence[int]) -> tuple[int, ...]:
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


async def _rendered_again(environment: Environment, episode: Episode) -> tuple[int, ...]:
    """The prompt of the last turn, as the chat format renders the messages before it."""
    context = EpisodeContext("rendered again", episode.task, random.Random(0))
    last = max(at for at, message in enumerate(episode.messages) if message.role == "assistant")
    async with environment.tools.open(episode.task, context) as session:
        return environment.chat.open(episode.messages[:last], session.specs()).ids


def prove(config: str) -> Figures:
    """Roll out and check every episode."""
    figures = asyncio.run(_prove(config))
    print(asdict(figures))
    assert figures.episodes == TASKS * GROUP
    # The rollout was of the kind that breaks what keeps texts: calls, several turns, other spellings, new weights.
    assert figures.calls > 100
    assert figures.several_turns > 100
    assert figures.not_canonical > 0
    assert figures.mixed_versions > 0
    return figures


def test_500_episodes_are_what_the_engine_sampled(warm: Any, workplace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {
        "model": {"path": "runs/warm"},
        "data": {"train": {"use": "arithmetic", "options": {"kinds": ["tiny_sum", "product"], "size": 500}}},
        "rollout": {"temperature": 1.2, "max_turn_tokens": 32, "max_episode_tokens": 256, "concurrency": 96},
        "run": {"name": "exact"},
    }
    config = workplace.config(changes, name="exact")
    monkeypatch.chdir(workplace.folder)
    figures = prove(config)
    assert figures.turns == figures.sequences > figures.episodes + 100
    assert figures.not_canonical > 10
    assert figures.in_flight_at_update > 0


@pytest.mark.slow
@pytest.mark.skipif(not CODER, reason="set TOOLRL_QWEN_CODER to the folder of Qwen2.5-Coder-0.5B-Instruct")
def test_500_episodes_of_a_real_model(own_place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "parser": {"use": "hermes", "options": {"lenient_json": True}},
        "rewards": [],
        "system_prompt": "Use the calculator for every calculation.",
    }
    kinds = ["sum", "product", "long_product", "multiply_add"]
    changes = {
        "model": {"path": str(CODER), "dtype": "bfloat16"},
        "data": {"train": {"use": "arithmetic", "options": {"kinds": kinds}}, "eval": None},
        "environments": {"default": environment},
        "rollout": {"max_turn_tokens": 96, "max_episode_tokens": 1024, "concurrency": 64},
        "run": {"name": "exact"},
    }
    config = own_place.config(changes)
    monkeypatch.chdir(own_place.folder)
    prove(config)
