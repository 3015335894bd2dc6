"""`toolrl.train`, `evaluate` and `rollout`, with tools, rewards and data that are Python objects."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

import toolrl
from toolrl.cli.main import main
from toolrl.errors import ToolrlError
from toolrl.protocols import BuildContext
from toolrl.tools import tool
from toolrl.types import Episode, Generation, Score

ROWS = [{"prompt": f"{a} + {b} =", "answer": str(a + b), "note": None} for a in range(3) for b in range(3)]
SCORED: list[str] = []


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="double")
def twice(number: int) -> int:
    """Double a number."""
    return 2 * number


def exact(episode: Episode) -> bool:
    SCORED.append(episode.id)
    return episode.main.messages[-1].content == episode.task.answer


async def brevity(episode: Episode) -> Score:
    return Score(1 / (1 + episode.sampled_tokens), metrics={"tokens": episode.sampled_tokens})


@pytest.fixture
def config(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    environment = {"tools": [add, {"use": twice, "weight": 2.0}], "rewards": [exact, {"use": brevity, "weight": 0.5}]}
    return {
        "model": {"path": str(tiny_model)},
        "data": {"train": ROWS, "eval": ROWS[:2]},
        "environments": {"default": {**environment, "max_turns": 2}},
        "rollout": {"max_turn_tokens": 8},
        "algorithm": {"group_size": 2},
        "trainer": {"steps": 3, "prompts_per_step": 2},
        "run": {"name": "own"},
        "threads": 1,
    }


def test_train_goes_on_and_is_evaluated(config: dict[str, Any]) -> None:
    SCORED.clear()
    run = toolrl.train(config, trainer={"steps": 1})
    assert [(line.step, line.kind) for line in run.metrics_lines()] == [(0, "eval"), (1, "train"), (1, "eval")]
    assert "accuracy" in run.metrics_lines()[-1].metrics
    episodes = [stored.episode for stored in run.episodes()]
    assert sorted(SCORED) == sorted(episode.id for episode in episodes)
    assert {entry.source for episode in episodes for entry in episode.rewards} == {"reward:exact", "reward:brevity"}
    run = toolrl.train(config, resume=True)
    assert run.metrics_lines("train")[-1].step == 3
    # A run's folder knows objects by their names only.
    objects = {"data": config["data"], "environments": config["environments"]}
    evaluated = toolrl.evaluate(run.directory, checkpoint="3", **objects)
    assert evaluated.directory == run.directory.with_name("own-eval-step3")


class Says:
    """An engine that calls both tools and then answers."""

    def __init__(self, options: Any, context: BuildContext) -> None:
        self._tokenizer = context.tokenizer
        self._turns: dict[str, int] = {}

    async def generate(self, prompt: Any, sampling: Any, *, session: str, media: Any = ()) -> Generation:
        turn = self._turns[session] = self._turns.get(session, 0) + 1
        calls = '{"name": "add", "arguments": {"a": 3, "b": 4}}', '{"name": "double", "arguments": {"number": 7}}'
        text = "14" if turn == 2 else "".join(f"<tool_call>{call}</tool_call>" for call in calls)
        ids = (*self._tokenizer.encode(text), self._tokenizer.convert_tokens_to_ids("<|im_end|>"))
        return Generation(ids, (-0.5,) * len(ids), "stop", versions=(0,) * len(ids))

    async def _nothing(self, *given: Any) -> None: ...

    start = stop = close = update_weights = _nothing


def test_ctrl_c_in_a_notebook_saves_the_run(config: dict[str, Any]) -> None:
    """The reward of the second step's first episode presses it."""

    def press(episode: Episode) -> float:
        if episode.id.startswith("train-2") and not pressed.is_set():
            pressed.set()
            os.kill(os.getpid(), signal.SIGINT)
        return 0.0

    pressed = threading.Event()

    async def cell() -> None:
        toolrl.train(config, environments={"default": {"rewards": [press]}}, trainer={"steps": 50})

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
    run = toolrl.train(config, resume=True)
    assert run.metrics_lines("train")[-1].step == 3
    assert run.summary()["status"] == "finished"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"train": iter(ROWS)}}, "data.train: a list_iterator has no length"),
        ({"data": {"train": []}}, "the data set is empty"),
        ({"data": {"train": ["2 + 2?"]}}, "data.train: row 0 is a str, expected a dict or a Task"),
        ({"environments": {"default": {"rewards": [lambda _: None]}}}, "it returned None, expected a number"),
        ({"environments": {"default": {"tools": [3]}}}, "tool 'int': got int 3"),
        ({"cluster": {"rollout_workers": 1}}, "other processes don't have"),
    ],
)
def test_mistakes(config: dict[str, Any], sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolrlError) as caught:
        toolrl.rollout(config, **sections)
    assert message in str(caught.value)


class Calculator:
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def __call__(self, episode: Episode) -> bool:
        return True


def test_methods_callables_and_columns(config: dict[str, Any]) -> None:
    own = {"tools": [Calculator().add, {"use": twice}], "rewards": [Calculator()]}
    rows = [{"question": row["prompt"], "answer": row["answer"]} for row in ROWS]
    data = {"train": {"use": rows, "options": {"fields": {"prompt": "question"}}}}
    section = {"default": own}
    said = {"rollout": {"max_turn_tokens": 400}, "engine": {"use": Says}}
    run = toolrl.rollout(config, tasks=1, episodes=1, data=data, environments=section, **said)
    (stored,) = run.episodes()
    assert [(call.call.name, call.result.text) for call in stored.episode.calls] == [("add", "7"), ("double", "14")]
    assert (stored.episode.reward, stored.episode.task.messages[-1].content) == (1.0, "0 + 0 =")


def test_the_end_of_a_run_with_objects_names_calls_from_python(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line can't make them again; it says so where it is tried."""
    pytest.importorskip("toolrl_plugin_console")
    run = toolrl.train(config, trainer={"steps": 1})
    printed = capsys.readouterr().out
    assert "toolrl.evaluate('runs/own', data=…, environments=…)" in printed
    assert "toolrl eval" not in printed
    for command in ("eval", "train"):
        assert main([command, str(run.directory)]) != 0
        assert "names Python objects" in capsys.readouterr().err


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_traceback_begins_with_the_users_call_and_ends_with_the_error(config: dict[str, Any], in_loop: bool) -> None:
    def broken(episode: Episode) -> float:
        raise KeyError("nokey")

    def call() -> None:
        toolrl.rollout(config, environments={"default": {"rewards": [broken]}})

    async def cell() -> None:
        call()

    with pytest.raises(ToolrlError, match="nokey") as caught:
        asyncio.run(cell()) if in_loop else call()
    shown = "".join(traceback.format_exception(caught.value))
    assert "no running event loop" not in shown
    assert "During handling" not in shown
    assert "rollouts" not in shown


def test_the_calls_are_listed_and_explained() -> None:
    for name in ("train", "evaluate", "rollout"):
        assert name in dir(toolrl)
        assert "Args:" in getattr(toolrl, name).__doc__
