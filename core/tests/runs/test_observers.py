"""Console and JSON lines, each fed a short run."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.builtin.console import ConsoleObserver, episode_text, visible
from toolrl.builtin.observers import JsonlObserver
from toolrl.builtin.options import ConsoleOptions, JsonlOptions
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


def console(**options: Any) -> tuple[ConsoleObserver, io.StringIO]:
    out, ticks = io.StringIO(), iter(range(1000))
    return ConsoleObserver(ConsoleOptions(**options), file=out, clock=lambda: float(next(ticks))), out


def test_plain_lines_where_there_is_no_terminal(tmp_path: Path, make_episode: MakeEpisode) -> None:
    observer, out = console(sample_every=0)
    feed(observer, Run(tmp_path), make_episode)
    lines = out.getvalue().splitlines()
    assert [line.split()[:2] for line in lines[1:-1]] == [
        ["train", "1/4"], ["train", "2/4"], ["train", "3/4"], ["train", "4/4"], ["eval", "4/4"],
    ]  # fmt: skip
    assert "accuracy 0.200" in lines[2]
    assert "loss nan" in lines[2]
    assert "\x1b" not in out.getvalue()
    assert lines[-1].startswith("finished in")


@pytest.mark.parametrize("live", [False, True])
def test_an_evaluation_by_itself_has_no_steps(live: bool, tmp_path: Path, make_episode: MakeEpisode) -> None:
    observer, out = console(live=live, color=live)
    feed(observer, Run(tmp_path, total_steps=0), make_episode)
    assert "accuracy" in out.getvalue()
    assert not re.search(r"\b0/\d", out.getvalue())


def test_failed_episodes_of_an_evaluation_are_shown_where_there_are_some(tmp_path: Path) -> None:
    observer, out = console()
    for failed in (0.0, 3.0):
        observer.toolrl_step_end(Run(tmp_path), StepReport(0, "eval", {"accuracy": 0.5, "errors/count": failed}))
    first, second = out.getvalue().splitlines()
    assert "errors/count" not in first
    assert "errors/count 3" in second


def test_every_thins_the_lines_out(tmp_path: Path, make_episode: MakeEpisode) -> None:
    observer, out = console(every=3, sample_every=0, metrics=["mine/own"])
    feed(observer, Run(tmp_path), make_episode)
    steps = [line.split()[1] for line in out.getvalue().splitlines() if line.startswith("train")]
    assert steps == ["1/4", "3/4", "4/4"]
    assert "mine/own 7" in out.getvalue()


def test_samples_show_who_wrote_what(tmp_path: Path, make_episode: MakeEpisode) -> None:
    observer, out = console(sample_every=4)
    feed(observer, Run(tmp_path), make_episode)
    text = out.getvalue()
    assert text.count("user │ What is 2 + 3?") == 2  # steps 1 and 4
    assert "model │ <tool_call>add</tool_call>" in text
    assert "add 0.25 s │ 5" in text
    assert "t4#4: answer, reward 1.100" in text


def test_the_live_view_is_drawn_on_a_terminal(tmp_path: Path, make_episode: MakeEpisode) -> None:
    observer, out = console(live=True, color=True, sample_every=0)
    feed(observer, Run(tmp_path), make_episode)
    assert "\x1b[" in out.getvalue()
    assert "step 4/4" in out.getvalue()
    assert "accuracy" in out.getvalue()


def test_a_resumed_run_counts_its_pace_from_where_it_went_on(tmp_path: Path, make_episode: MakeEpisode) -> None:
    observer, out = console(sample_every=0)
    feed(observer, Run(tmp_path, start_step=2), make_episode)
    assert "resumes at step 2" in out.getvalue()
    assert [line.split()[1] for line in out.getvalue().splitlines() if line.startswith("train")] == ["3/4", "4/4"]


@pytest.mark.parametrize(
    ("error", "word"), [(ValueError("no more disk"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_the_last_line_says_how_it_ended(
    tmp_path: Path, make_episode: MakeEpisode, error: BaseException, word: str
) -> None:
    observer, out = console(sample_every=0)
    feed(observer, Run(tmp_path), make_episode, error)
    last = out.getvalue().splitlines()[-1]
    assert last.startswith(word)
    assert type(error).__name__ in last


@pytest.mark.parametrize("live", [False, True])
def test_a_run_goes_on_when_nobody_reads_it_any_more(live: bool, tmp_path: Path, make_episode: MakeEpisode) -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    out = Closed()
    feed(ConsoleObserver(ConsoleOptions(live=live), file=out), Run(tmp_path), make_episode)
    assert "train" not in out.getvalue(), "after the first failure it says nothing"


def test_text_of_a_model_cannot_steer_the_terminal(make_episode: MakeEpisode) -> None:
    hostile = "\x1b[2J\x9b31m\u202e[bold]x[/bold]\r\n"
    text = episode_text(make_episode(said=hostile, result=hostile, question=hostile), 10_000).plain
    assert not set(text) & set("\x1b\x9b\u202e\r")
    assert "[bold]x[/bold]" in text
    assert visible("é 漢 👩\u200d🔬\n\t") == "é 漢 👩\u200d🔬\n\t"


def test_long_samples_are_cut_in_the_middle(make_episode: MakeEpisode) -> None:
    text = episode_text(make_episode(question="a" * 5000), 300).plain
    assert len(text) < 500
    assert "characters …" in text
    assert "t0#0: answer" in text


def test_jsonl_to_standard_output(tmp_path: Path, make_episode: MakeEpisode) -> None:
    out = io.StringIO()
    feed(JsonlObserver(JsonlOptions(), stdout=out), Run(tmp_path), make_episode)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [record.get("step") for record in records] == [1, 2, 3, 4, 4, None]
    assert records[0]["accuracy"] == 0.1
    assert records[0]["loss"] == "nan"
    assert records[-1] == {"run": "demo", "end": "finished"}


def test_jsonl_adds_to_a_file_and_picks_kinds(tmp_path: Path, make_episode: MakeEpisode) -> None:
    path = tmp_path / "new" / "all.jsonl"
    for _ in range(2):
        observer = JsonlObserver(JsonlOptions(path=str(path), kinds=["eval"]))
        feed(observer, Run(tmp_path), make_episode, RuntimeError("x"))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record.get("kind", record.get("end")) for record in records] == ["eval", "RuntimeError: x"] * 2
