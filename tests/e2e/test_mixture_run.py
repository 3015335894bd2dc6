"""A run on several data sets: their environments, shares and metrics, and what a resume makes of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import toolrl
from toolrl.types import Episode

SUMS = [{"id": str(n), "prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(7)]
WORDS = [{"id": str(n), "prompt": f"Say {word}.", "answer": word} for n, word in enumerate(("yes", "no", "maybe"))]


def length(episode: Episode) -> float:
    return episode.sampled_tokens / 8


def right(episode: Episode) -> bool:
    return episode.final_text.strip() == episode.task.answer


@pytest.fixture
def config(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    Path("words.jsonl").write_text("\n".join(map(json.dumps, WORDS)), encoding="utf-8")
    words = {"use": "jsonl", "options": {"path": "words.jsonl"}, "name": "words", "environment": "talk"}
    return {
        "model": {"path": str(tiny_model)},
        "data": {
            "train": [{"use": SUMS, "name": "sums", "share": 3}, {**words, "share": 1}],
            "eval": [{"use": SUMS, "name": "sums"}, words],
        },
        "environments": {
            "default": {"rewards": [right, length], "max_turns": 1},
            "talk": {"rewards": [right], "max_turns": 1},
        },
        "rollout": {"max_turn_tokens": 8, "concurrency": 6},
        "algorithm": {"group_size": 2, "difficulty": {}},
        "evaluation": {"tasks": 5},
        "trainer": {"steps": 5, "prompts_per_step": 8, "learning_rate": 1.0e-3, "keep_checkpoints": 9},
        "deterministic": True,
        "threads": 1,
    }


def test_a_mixture_is_resumed_bit_for_bit(config: dict[str, Any]) -> None:
    from safetensors.torch import load_file

    whole = toolrl.train(config, run={"name": "whole"})
    toolrl.train(config, run={"name": "parts"}, trainer={"steps": 2})
    parts = toolrl.train(config, run={"name": "parts"}, resume=True)
    weights = [load_file(run.checkpoints / "step-000005" / "model.safetensors") for run in (whole, parts)]
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())

    episodes = [stored.episode for stored in whole.episodes(kind="train")]
    # Episodes of a step are stored as they end.
    played = [sorted((it.step, it.episode.id) for it in run.episodes(kind="train")) for run in (whole, parts)]
    assert played[0] == played[1]
    assert {(it.task.dataset, it.environment) for it in episodes} == {("sums", "default"), ("words", "talk")}
    taken = Counter(it.task.dataset for it in episodes)
    assert taken["sums"] > taken["words"] > 0

    metrics = whole.metrics_lines("eval")[-1].metrics
    assert {"accuracy", "dataset/accuracy/sums", "dataset/accuracy/words"} <= metrics.keys()
    evaluated = Counter(stored.episode.task.dataset for stored in whole.episodes(kind="eval"))
    assert {name: count // 2 for name, count in evaluated.items()} == {"sums": 4, "words": 1}, "two evaluations"


def test_other_data_are_remarked_on_where_a_run_goes_on(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    config["algorithm"] = {"group_size": 2}
    toolrl.train(config, run={"name": "changed"}, trainer={"steps": 1})
    Path("words.jsonl").write_text("\n".join(map(json.dumps, [{**row, "answer": "?"} for row in WORDS])))
    toolrl.train(config, run={"name": "changed"}, trainer={"steps": 2}, resume=True)
    assert "data.train: the data have changed" in caplog.text


def test_own_python_by_file_in_a_list(config: dict[str, Any]) -> None:
    """The run's folder names the files, so the run is evaluated without giving them again."""
    Path("own.py").write_text(
        "def rows(count):\n"
        "    for n in range(count):\n"
        "        yield {'prompt': f'{n} + 1 =', 'answer': str(n + 1)}\n\n\n"
        "async def right(episode):\n"
        "    return episode.final_text.strip() == episode.task.answer\n"
    )
    rows = {"use": "function", "name": "own", "options": {"target": "own.py:rows", "options": {"count": 4}}}
    words = {"use": "jsonl", "options": {"path": "words.jsonl"}}
    reward = {"use": "function", "name": "right", "options": {"target": "own.py:right"}}
    config |= {"data": {"train": [rows, words], "eval": [rows, words]}, "algorithm": {"group_size": 2}}
    config["environments"] = {"default": {"rewards": [reward], "max_turns": 1}}
    run = toolrl.train(config, run={"name": "own"}, trainer={"steps": 1, "prompts_per_step": 7})
    assert {stored.episode.task.dataset for stored in run.episodes(kind="train")} == {"own", "jsonl"}
    metrics = toolrl.evaluate(run.directory).metrics_lines("eval")[-1].metrics
    assert {"reward/right/mean", "dataset/accuracy/own", "dataset/accuracy/jsonl"} <= metrics.keys()
