"""What is trained is what was sampled, token for token: 500 episodes of a real engine with real tools, several turns.

The checks are those of `tests/benchmarks/exact_rollout.py`, which also counts what a trainer that keeps texts would
have got wrong. An ordinary run takes the tiny model; `nox -s slow` also takes Qwen2.5-Coder-0.5B-Instruct, which calls
its tool of its own accord, where TOOLRL_QWEN_CODER names its folder.
"""

from __future__ import annotations

import asyncio
import os
import runpy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODER = os.environ.get("TOOLRL_QWEN_CODER")
TASKS, GROUP = 125, 4


@pytest.fixture(scope="module")
def proof() -> dict[str, Any]:
    """The benchmark's functions."""
    for name in ("torch", "transformers", "toolrl_plugin_transformers"):
        pytest.importorskip(name)
    return runpy.run_path(str(ROOT / "tests" / "benchmarks" / "exact_rollout.py"))


def test_500_episodes_are_what_the_engine_sampled(
    proof: dict[str, Any], warm: Any, workplace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {
        "model": {"path": "runs/warm"},
        "data": {"train": {"use": "arithmetic", "options": {"kinds": ["tiny_sum", "product"], "size": 500}}},
        "rollout": {"temperature": 1.2, "max_turn_tokens": 32, "max_episode_tokens": 256, "concurrency": 96},
        "run": {"name": "exact"},
    }
    config = workplace.config(changes, name="exact")
    monkeypatch.chdir(workplace.folder)
    figures = asyncio.run(proof["prove"](config, TASKS, GROUP))
    print(asdict(figures))
    assert figures.episodes == TASKS * GROUP
    # The rollout was of the kind that breaks what keeps texts: calls, several turns, other spellings, new weights.
    assert figures.calls > 100
    assert figures.several_turns > 100
    assert figures.turns == figures.sequences > figures.episodes + 100
    assert figures.not_canonical > 10
    assert figures.in_flight_at_update > 0
    assert figures.mixed_versions > 0


def test_the_check_sees_a_change_of_one_token(proof: dict[str, Any]) -> None:
    from toolrl.types import Generation, Sampling
    from toolrl_testing.fakes import Generated, make_episode

    episode = make_episode("one", "two", logprobs=None, weight_versions=None)
    generated, start = [], 0
    for turn in episode.turns:
        first, last = turn.segments[0].tokens
        size = last - first
        generation = Generation(episode.ids[first:last], (-1.0,) * size, "stop", None, (0,) * size)
        generated.append(Generated(episode.id, episode.ids[:first], Sampling(64), generation))
    mask = episode.loss_mask
    episode = replace(episode, logprobs=tuple(-1.0 * bit for bit in mask), weight_versions=tuple(b - 1 for b in mask))
    check = proof["check_episode"]
    check(episode, generated)

    at = episode.turns[1].segments[0].tokens[0]

    def changed(name: str, position: int, value: Any) -> Any:
        values = list(getattr(episode, name))
        values[position] = value
        return replace(episode, **{name: tuple(values)})

    wrong = [
        changed("ids", at, episode.ids[at] + 1),
        changed("ids", start, episode.ids[start] + 1),
        changed("loss_mask", at, 0),
        changed("loss_mask", at - 1, 1),
        changed("logprobs", at, -1.0000001),
        changed("weight_versions", at, 1),
        replace(episode, prompt_length=episode.prompt_length + 1),
    ]
    for other in wrong:
        with pytest.raises(AssertionError):
            check(other, generated)
    for others in (generated[::-1], generated[:1], generated[1:], []):
        with pytest.raises(AssertionError):
            check(episode, others)


# The same with a real model.


@pytest.mark.slow
@pytest.mark.skipif(not CODER, reason="set TOOLRL_QWEN_CODER to the folder of Qwen2.5-Coder-0.5B-Instruct")
def test_500_episodes_of_a_real_model(proof: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", str(CODER))
    monkeypatch.chdir(tmp_path)
    figures = asyncio.run(proof["prove"](proof["CONFIG"], TASKS, GROUP))
    print(asdict(figures))
    assert figures.episodes == TASKS * GROUP
    assert figures.calls > 100
    assert figures.several_turns > 100
    assert figures.not_canonical > 0
    assert figures.mixed_versions > 0
