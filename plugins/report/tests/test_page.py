"""The report as text: what it holds, that it is bounded, that hostile text stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder
from toolrl.runs.metrics import MetricsLine
from toolrl.types import CallError, Episode
from toolrl_plugin_report.charts import layout
from toolrl_plugin_report.page import build_page, write_report
from toolrl_plugin_report.sample import sample_episodes
from toolrl_plugin_report.series import MAX_POINTS, curves, headlines
from toolrl_plugin_report.view import said

MakeRun = Callable[..., RunFolder]
HOSTILE = "</script><script>document.title='hacked'</script><!--<script>&amp;\u2028 {{data}} \ud83d"


class Elements(HTMLParser):
    """All start tags, and what stands inside script elements, as a browser would split them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def data_of(page: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Elements(page).scripts[0])
    return data


def test_the_page_holds_curves_episodes_and_tokens(make_run: MakeRun) -> None:
    folder = make_run()
    data = data_of(folder.report_path.read_text())
    assert data["runs"][0]["curves"]["train"]["reward/mean"] == [[1, 2, 3], [0.1, 0.2, 0.3]]
    assert data["runs"][0]["curves"]["train"]["loss"] == [[1, 2, 3], [None, None, None]]
    assert [episode["step"] for episode in data["episodes"]] == [0, 1, 1, 2, 2, 3, 3, 3]
    assert data["tokens"]["14"] == "‹14›"
    episode = data["episodes"][1]
    (trajectory,) = episode["trajectories"]
    assert trajectory["spans"] == [[4, 7], [9, 11]]
    assert trajectory["logprobs"] == [-0.1, -0.2, -0.3, -1.5, -0.01]
    assert trajectory["turns"][0]["calls"][0]["arguments"] == '{\n  "a": 2,\n  "b": 3\n}'


def test_it_needs_nothing_else(make_run: MakeRun) -> None:
    page = make_run().report_path.read_text()
    elements = Elements(page)
    assert not [(tag, attrs) for tag, attrs in elements.tags if {"src", "href", "action"} & attrs.keys()]
    assert {tag for tag, _ in elements.tags} & {"link", "img", "iframe", "object"} == set()
    assert "@import" not in page
    assert "url(" not in page


def test_the_policy_allows_the_pages_own_script_alone(make_run: MakeRun) -> None:
    elements = Elements(make_run().report_path.read_text())
    (policy,) = [str(attrs["content"]) for tag, attrs in elements.tags if attrs.get("http-equiv")]
    _, script = elements.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_text_opens_no_element(make_run: MakeRun) -> None:
    folder = make_run(said=HOSTILE, question=HOSTILE, result=HOSTILE, error=ValueError(HOSTILE))
    page = folder.report_path.read_text()
    plain = make_run("plain", error=ValueError("x")).report_path.read_text()
    assert len(Elements(page).scripts) == 2
    assert [tag for tag, _ in Elements(page).tags] == [tag for tag, _ in Elements(plain).tags]
    said = data_of(page)["episodes"][0]["trajectories"][0]["turns"][0]["segments"][0][1]
    assert said == HOSTILE.replace("\ud83d", "?")


@pytest.mark.parametrize(
    ("error", "words"), [(KeyboardInterrupt(), "was interrupted"), (ValueError("no <b>disk</b>"), "failed")]
)
def test_the_top_says_how_a_run_ended(make_run: MakeRun, error: BaseException, words: str) -> None:
    page = make_run(error=error).report_path.read_text()
    assert f"This run {words}" in page
    assert "<b>disk" not in page
    assert "This run" not in make_run("fine").report_path.read_text()


def test_a_run_without_a_step(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "r", {}, total_steps=5)
    page = build_page(folder)
    assert "has not started" in page
    assert "No step has been reported yet" in page
    assert data_of(page)["episodes"] == []


def test_a_run_that_goes_on(make_run: MakeRun, make_episode: Callable[..., Episode]) -> None:
    folder = RunFolder.create(make_run().directory, {}, total_steps=9, resume=True)
    folder.rewind(3)
    folder.write_summary({"status": "running"})
    folder.episode_store.add(make_episode(round_id="train-4"))
    page = build_page(RunFolder.open(folder.directory))
    assert "This run is still running" in page
    assert "All 9 episodes" in page
    folder.close()


def test_without_token_texts_and_without_episodes(make_run: MakeRun) -> None:
    folder = make_run()
    (folder.directory / "tokens.jsonl").unlink()
    assert data_of(build_page(folder))["tokens"] == {}
    for file in folder.episode_store.files():
        file.path.unlink()
    assert data_of(build_page(folder))["episodes"] == []


def test_the_pages_size_is_bounded_and_the_share_said(make_run: MakeRun) -> None:
    folder = make_run(steps=30, said="x" * 500)
    page = build_page(folder, page_bytes=20_000)
    episodes = data_of(page)["episodes"]
    assert 5 < len(episodes) < 62
    assert f"{len(episodes)} of 62 episodes" in page
    steps = {episode["step"] for episode in episodes}
    assert {0, 1, 30} <= steps
    assert any(5 < step < 25 for step in steps)
    assert {episode["kind"] for episode in episodes} == {"train", "eval"}


def test_failed_best_and_worst_come_first(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    folder = RunFolder.create(tmp_path / "r", {}, total_steps=1)
    for index in range(40):
        folder.episode_store.add(make_episode(index, correct=index == 33, failed=index == 21))
    folder.metrics.append(StepReport(1, "train", {}), folder.episode_store.close_step(1, "train"))
    size = len(sample_episodes(folder, page_bytes=10**6).items[0].encode())
    shown = [json.loads(item) for item in sample_episodes(folder, page_bytes=4 * size).items]
    ids = {episode["id"] for episode in shown}
    assert {"t21#21", "t33#33"} <= ids
    assert sample_episodes(folder, page_bytes=0).items == []


def test_long_texts_are_cut_in_the_middle(make_run: MakeRun) -> None:
    page = make_run(result="y" * 100_000).report_path.read_text()
    result = data_of(page)["episodes"][0]["trajectories"][0]["turns"][0]["calls"][0]["result"]
    assert len(result) < 21_000
    assert "80000 characters left out" in result


def test_rewards_and_tools_are_summed_up(make_run: MakeRun) -> None:
    page = make_run().report_path.read_text()
    rewards = re.search(r"Rewards by source and turn.*?</section>", page, re.DOTALL)
    tools = re.search(r"<h2>Calls by tool.*?</section>", page, re.DOTALL)
    assert rewards is not None
    assert tools is not None
    cells = '<td data-label="whole"></td><td data-label="turn 1"><span title=\'8 entries\'>0.100</span></td>'
    assert f"<th>step:add</th>{cells}" in rewards[0]
    assert re.search(r"<th>add</th><td[^>]*>8</td><td[^>]*>100.0 %</td><td[^>]*>250 ms</td>", tools[0])


def test_several_runs_are_compared(make_run: MakeRun, tmp_path: Path) -> None:
    one, two = make_run("one"), make_run("two", steps=5)
    path = write_report(one, tmp_path / "sub" / "both.html", compare=[two])
    page = path.read_text()
    assert [run["name"] for run in data_of(page)["runs"]] == ["one", "two"]
    assert "10.0\u00a0% → 60.0\u00a0% (highest 60.0\u00a0%)" in page


def line(step: int, kind: str = "train", **metrics: float) -> MetricsLine:
    return MetricsLine(step, kind, 0.0, 0, {name.replace("__", "/"): value for name, value in metrics.items()})


def test_an_ablation_is_a_table_and_no_charts(make_run: MakeRun, make_episode: Callable[..., Episode]) -> None:
    with_tools = {"accuracy": 0.9, "accuracy/stderr": 0.03, "calls/mean": 1.0}
    under = {"accuracy": 0.1, "calls/mean": 0.5, "benefit/accuracy": 0.8}
    ends = {"benefit/accuracy/low": 0.7, "benefit/accuracy/high": 0.9}
    folder = make_run()
    ablated = {f"ablation/none/{name}": value for name, value in {**under, **ends}.items()}
    folder.metrics.append(StepReport(4, "eval", {**with_tools, **ablated}), 0)
    page = build_page(folder)
    cells = ["without tools", "0.100", "0.500", "+0.800 [+0.700, +0.900]"]
    row = f"<th>{cells[0]}</th>" + "".join(rf"<td[^>]*>{re.escape(cell)}</td>" for cell in cells[1:])
    assert re.search(row, page)
    assert "90.0\u00a0% ± 3.0\u00a0%" in page
    charts = [chart["metrics"] for section in data_of(page)["sections"] for chart in section["charts"]]
    assert not [name for names in charts for name in names if name.startswith("ablation/") or "stderr" in name]


def test_long_curves_are_thinned_to_means() -> None:
    steps, values = curves([line(step, loss=float(step % 2)) for step in range(1, 4001)])["train"]["loss"]
    assert len(steps) <= MAX_POINTS
    assert steps[-1] == 4000
    assert set(values) == {0.5}


def test_stop_reasons_that_ended_nothing_count_as_zero() -> None:
    found = curves([line(1, stop__answer=1.0), line(2, stop__answer=0.5, stop__error=0.5)])["train"]
    assert found["stop/error"] == [[1, 2], [0.0, 0.5]]


def test_headlines_take_evaluations_where_there_are_two() -> None:
    lines = [line(0, "eval", accuracy=0.2), *(line(step, accuracy=step / 100) for step in range(1, 51))]
    (headline,) = headlines(lines)
    assert (headline.kind, headline.width) == ("train", 10)
    assert headline.start == pytest.approx(0.055)
    assert headline.end == pytest.approx(0.455)
    (headline,) = headlines([*lines, line(50, "eval", accuracy=0.7)])
    assert (headline.kind, headline.start, headline.end) == ("eval", 0.2, 0.7)
    assert headlines([line(1, accuracy=float("nan"))]) == []


def test_every_metric_is_in_one_chart() -> None:
    names = ["accuracy", "avg@4", "stop/answer", "reward/math/mean", "time/step", "mine/a", "mine/b", "own"]
    charts = [(chart.title, metrics) for _, charts in layout(names) for chart, metrics in charts]
    assert sorted(metric for _, metrics in charts for metric in metrics) == sorted(names)
    assert ("mine", ["mine/a", "mine/b"]) in charts
    assert ("own", ["own"]) in charts
    assert charts[0][0] == "Accuracy"


def test_a_search_reads_calls_that_cannot_be_read(make_episode: Callable[..., Episode]) -> None:
    episode = make_episode(failed=True)
    turn = episode.turns[0]
    unread = CallError("bad_json", "Could not parse it.", span=(0, 9), tokens=(0, 3), raw="<call>{ODD")
    record = replace(turn.calls[0], call=unread)
    trajectory = replace(episode.trajectories[0], turns=(replace(turn, calls=(record,)), *episode.turns[1:]))
    text = said(replace(episode, trajectories=(trajectory,)))
    assert "<call>{odd" in text
    assert "no connection" in text, "the failure"
    assert "\n" not in text
