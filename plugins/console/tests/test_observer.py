"""Options of the console, sampled episodes, resumed runs and how runs end."""

from __future__ import annotations

import io
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from toolrl.protocols import StepReport
from toolrl_plugin_console import observer, results
from toolrl_plugin_console.observer import ConsoleObserver
from toolrl_plugin_console.options import ConsoleOptions
from toolrl_plugin_console.texts import episode_text, sparkline

PLAYED: Any = runpy.run_path(str(Path(__file__).parent / "support" / "played_run.py"))
play, build_episode = PLAYED["play"], PLAYED["build_episode"]


def console(file: io.StringIO | None = None, **options: Any) -> tuple[ConsoleObserver, io.StringIO]:
    out = file or io.StringIO()
    return ConsoleObserver(ConsoleOptions(**options), file=out), out


def test_options_thin_the_lines_out_and_add_metrics(tmp_path: Path) -> None:
    observer, out = console(every=3, sample_every=0, metrics=["my/own"])
    play(tmp_path, observer)
    assert re.findall(r"^train (\d/4).*my/own 7", out.getvalue(), re.MULTILINE) == ["1/4", "3/4", "4/4"]


def test_a_metric_that_no_report_has_is_told_at_the_end(tmp_path: Path) -> None:
    observer, out = console(sample_every=0, metrics=["my/own", "my/onw"])
    play(tmp_path, observer)
    (line,) = [line for line in out.getvalue().splitlines() if "no report has" in line]
    assert line.endswith("my/onw")


def test_samples_show_who_wrote_what(tmp_path: Path) -> None:
    observer, out = console(sample_every=4)
    play(tmp_path, observer)
    text = out.getvalue()
    assert text.count("user │ What is 2 + 3?") == 2  # Steps 1 and 4.
    assert "model │ <tool_call>add</tool_call>" in text
    assert "add 0.25 s │ 5" in text
    assert "t3#3: answer, reward 1.100" in text


def test_failed_episodes_are_shown_where_there_are_some(tmp_path: Path) -> None:
    observer, out = console()
    for failed in (0.0, 3.0):
        run: Any = None
        observer.toolrl_step_end(run, StepReport(0, "eval", {"accuracy": 0.5, "errors/count": failed}))
    first, second = out.getvalue().splitlines()
    assert "errors/count" not in first
    assert "errors/count 3" in second


@pytest.mark.parametrize(("error", "word"), [(ValueError(), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_a_run_that_was_cut_off_says_how_to_go_on_and_is_shown_whole_when_it_does(
    tmp_path: Path, error: BaseException, word: str
) -> None:
    def cut() -> None:
        raise error

    observer, out = console(sample_every=0)
    play(tmp_path / "my run", observer, within_step_3=cut)
    end = out.getvalue().partition(f"{word} after ")[2]
    assert ("at step 2/4 (ValueError)" if word == "failed" else "at step 2/4\n") in end
    assert re.search(r"^eval accuracy +0\.100 ± 0\.020 *$", end, re.MULTILINE)
    row = end[end.index("eval accuracy") :].splitlines()[0]
    assert row.index("0.100") == end.splitlines()[1].index("first"), "the only evaluation is the first"
    assert f"next        toolrl train '{tmp_path}/my run' --resume" in end
    resumed, out = console(sample_every=0)
    play(tmp_path / "my run", resumed, start=2)
    text = out.getvalue()
    assert "resumes at step 2" in text
    assert re.findall(r"^train (\d/4)", text, re.MULTILINE) == ["3/4", "4/4"]
    assert "reward ▁▃▆█ 0.4" in text, "with the steps before"
    assert "--resume" not in text


@pytest.mark.parametrize("live", [False, True])
def test_a_run_continues_after_its_reader_has_left(live: bool, tmp_path: Path) -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    observer, out = console(Closed(), live=live)
    play(tmp_path, observer)
    assert "train" not in out.getvalue(), "after the first failure it prints nothing"


def test_text_of_a_model_cannot_steer_the_terminal() -> None:
    hostile = "\x1b[2J\x9b31m\u202e[bold]x[/bold]\r\n"
    text = episode_text(build_episode(said=hostile, result=hostile, question=hostile), 10_000).plain
    assert not set(text) & set("\x1b\x9b\u202e\r")
    assert "[bold]x[/bold]" in text


def test_long_samples_are_cut_in_the_middle() -> None:
    text = episode_text(build_episode(question="a" * 5000), 300).plain
    assert len(text) < 500
    assert "characters …" in text
    assert "t0#0: answer" in text


def test_a_sparkline_averages_what_does_not_fit() -> None:
    assert sparkline([0.0, 0.0, 4.0, 4.0, float("nan"), 7.0, 7.0], 3) == "▁▅█"
    assert sparkline([2.0, 2.0], 8) == "▁▁"
    assert sparkline([float("inf")], 8) == ""


METRICS_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


@pytest.mark.parametrize("name", [*dict.fromkeys([*observer._METRICS, *results._METRICS])])
def test_each_metric_of_the_console_is_one_that_runs_write(name: str) -> None:
    owner, _, rest = name.partition("/")
    assert re.search(rf"`{name}`|`{owner}/<key>` .*`{rest}`", METRICS_PAGE.read_text(encoding="utf-8"))


def test_a_zero_that_says_that_something_is_broken_is_shown(tmp_path: Path) -> None:
    shown, out = console(sample_every=0)
    play(tmp_path, shown, more={"calls/success": 0.0, "truncated": 1.0})
    line, table = re.search(r"^train 4/4.*$", out.getvalue(), re.M), out.getvalue().partition("finished")[2]
    assert line is not None
    assert "calls/success 0" in line[0]
    assert "truncated 1" in line[0]
    assert re.search(r"train calls/success +0 +0", table)
    assert re.search(r"train truncated +1 +1", table)


def test_a_pipe_gets_a_line_now_and_then_while_many_episodes_are_sampled() -> None:
    now, out = 0.0, io.StringIO()
    shown = ConsoleObserver(ConsoleOptions(), file=out, clock=lambda: now)
    run: Any = None
    shown.toolrl_phase_start(run, "sampling", 5000)
    for index in range(2500):
        now += 0.1
        shown.toolrl_episode_end(run, build_episode(index, round_id="rollout"))
    first, *lines = out.getvalue().splitlines()
    assert first == "sampling, 5,000 episodes"
    assert len(lines) == 8, "one each 30 s of 250"
    assert lines[0] == "sampling: 300/5,000 episodes  30.0 s, 7 min 50 s left"
    assert "\x1b" not in out.getvalue()
