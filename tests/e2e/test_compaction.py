"""A run whose model sums up its history: its trajectories, what the trainer makes of them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SUMMARISE = {"use": "summarise", "options": {"at_tokens": 50, "max_tokens": 6, "prompt": "Sum up."}}


def changes(**environment: Any) -> dict[str, Any]:
    return {
        "model": {"path": "runs/warm"},
        "data": {"eval": None},
        "environments": {"default": {"history": [SUMMARISE], **environment}},
        "trainer": {"steps": 1, "save_every": 0, "updates_per_step": 2},
        "deterministic": True,
        "observers": ["report"],
    }


def test_each_compaction_is_one_more_trajectory(own_place: Any, read_report: Callable[[Any], dict[str, Any]]) -> None:
    run = own_place.train(changes())
    (line,) = run.metrics_lines("train")
    assert 0 < line.metrics["logprob_mismatch/max"] < 1e-4
    assert line.metrics["errors/rate"] == 0
    assert line.metrics["trajectories/mean"] > 1
    assert line.metrics["tool/summarise/rewrites"] > 0
    assert "stop/context_full" not in line.metrics
    compacted = [it.episode for it in run.episodes() if it.episode.metrics.get("tool/summarise/rewrites")]
    assert compacted
    for episode in compacted:
        rewrites = int(episode.metrics["tool/summarise/rewrites"])
        assert [it.role for it in episode.trajectories] == ["agent"] * (rewrites + 1)
        question = next(message for message in episode.trajectories[0].messages if message.content == "Sum up.")
        assert question.role == "user"
        assert "in your own summary:" in episode.messages[0].content
        assert episode.sampled_tokens == sum(turn.sampled_tokens for turn in episode.turns)
    assert max(len(episode["trajectories"]) for episode in read_report(run)["episodes"]) > 1


def test_a_parser_that_answers_inside_the_turn_is_refused(own_place: Any) -> None:
    done = own_place.toolrl("train", own_place.config(changes(parser="tir")), "--json")
    assert done.returncode != 0
    error = done.json()["error"]
    assert error["where"] == "environments.default.history"
    assert "the parser 'tir' puts results inside the turn" in error["message"]
