"""Core's console and JSON lines, each fed a short run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.builtin.observers import JsonlObserver, PlainConsole
from toolrl.builtin.options import JsonlOptions, PlainConsoleOptions
from toolrl.protocols import StepReport
from toolrl.types import Episode

MakeEpisode = Callable[..., Episode]


class Run:
    def __init__(self, directory: Path, start_step: int = 0, total_steps: int = 4) -> None:
        self.name, self.directory, self.config = "demo", directory, {"model": {"path": "tiny"}}
        self.total_steps, self.start_step = total_steps, start_step


def feed(observer: Any, run: Run, make_episode: MakeEpisode, error: BaseException | None = None) -> None:
    def tell(event: str, *args: Any) -> None:
        if hasattr(observer, event):
            getattr(observer, event)(run, *args)

    tell("toolrl_run_start")
    for step in range(run.start_step + 1, run.total_steps + 1):
        tell("toolrl_episode_end", make_episode(step))
        metrics = {"accuracy": step / 10, "loss": float("nan"), "mine/own": 7.0}
        tell("toolrl_step_end", StepReport(step, "train", metrics))
    tell("toolrl_step_end", StepReport(run.total_steps, "eval", {"accuracy": 0.75}))
    tell("toolrl_run_end", error)


def test_without_its_plugin_the_console_prints_a_line_each_so_many_steps(
    tmp_path: Path, make_episode: MakeEpisode, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(PlainConsole(PlainConsoleOptions(every=2)), Run(tmp_path), make_episode)
    assert capsys.readouterr().out.splitlines() == [
        "train 2/4  accuracy 0.200  loss nan",
        "train 4/4  accuracy 0.400  loss nan",
        "eval 4/4  accuracy 0.750",
        f"finished; {tmp_path}",
    ]


def test_jsonl_to_standard_output(tmp_path: Path, make_episode: MakeEpisode) -> None:
    out = io.StringIO()
    feed(JsonlObserver(JsonlOptions(), stdout=out), Run(tmp_path), make_episode)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [record.get("step") for record in records] == [1, 2, 3, 4, 4, None]
    assert records[0]["accuracy"] == 0.1
    assert records[0]["loss"] == "nan"
    assert records[-1] == {"run": "demo", "end": "finished"}


def test_jsonl_adds_to_a_file(tmp_path: Path, make_episode: MakeEpisode) -> None:
    path = tmp_path / "new" / "all.jsonl"
    for _ in range(2):
        observer = JsonlObserver(JsonlOptions(path=str(path)))
        feed(observer, Run(tmp_path), make_episode, RuntimeError("x"))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["end"] for record in records if "end" in record] == ["RuntimeError: x"] * 2
