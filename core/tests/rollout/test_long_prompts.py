"""A prompt that leaves no room in an episode is told once, with what to set."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from toolrl.rollouts.long_prompts import LongPrompts
from toolrl.types import Episode, Trajectory
from toolrl_testing.fakes import make_episode, make_task


def cut_at_once(name: str) -> Episode:
    """An episode whose prompt was all that there was room for."""
    episode = make_episode(task=make_task(id=name), stop_reason="context_full")
    assert not episode.turns
    return episode


@pytest.mark.parametrize(
    ("of_model", "said"),
    [
        (False, "rollout.max_episode_tokens is 4: such an episode ends at once as context_full, without a token "
                "sampled; set rollout.max_episode_tokens well above 17, shorten the prompt or leave such tasks out"),
        (True, "the model can attend to 4: such an episode ends at once as context_full, without a token sampled; "
               "shorten the prompt or leave such tasks out"),
    ],
)  # fmt: skip
def test_it_is_said_once_with_the_lengths(caplog: pytest.LogCaptureFixture, of_model: bool, said: str) -> None:
    prompts = LongPrompts(4, of_model=of_model)
    with caplog.at_level(logging.WARNING):
        prompts.toolrl_episode_end(cut_at_once("first"))
        prompts.toolrl_episode_end(cut_at_once("second"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("task 'first': its prompt has 17 tokens")
    assert said in line


def test_a_prompt_that_was_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    episode = replace(cut_at_once("harness"), trajectories=(Trajectory(),))
    LongPrompts(4, of_model=False).toolrl_episode_end(episode)
    assert "its prompt has too many tokens" in caplog.text
    assert "well above 4" in caplog.text


def test_an_episode_that_was_cut_later_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    prompts = LongPrompts(4, of_model=False)
    episode = make_episode("I reckon", stop_reason="context_full")
    assert episode.turns
    with caplog.at_level(logging.WARNING):
        prompts.toolrl_episode_end(episode)
        prompts.toolrl_episode_end(make_episode(stop_reason="no_call"))
    assert not caplog.records
