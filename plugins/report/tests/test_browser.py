"""The report in a real browser: what a reader sees, clicks and finds, hostile text included."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder
from toolrl.runs.log import RunLog
from toolrl.types import Episode
from toolrl_plugin_report.page import build_page, write_report

MakeRun = Callable[..., RunFolder]
HOSTILE = "</script><script>document.title='hacked'</script><img src=x onerror=document.title='hacked'>\u202e"


def texts(page: Any, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def test_charts_and_episodes_are_drawn(make_run: MakeRun, open_page: Any) -> None:
    page = open_page(make_run().report_path)
    assert texts(page, ".chart h3:visible") == ["Accuracy", "Reward", "Loss"]
    assert page.locator(".chart path").first.get_attribute("d").startswith("M")
    assert "3 not finite" in page.content()
    assert page.locator("#list li").count() == 8
    assert texts(page, ".text.model") == ["<tool_call>add</tool_call>", "6"]
    # What stayed the same is folded, and its name and value say so.
    assert texts(page, ".flat summary") == ["constant: Time of a step by stage 1 s"]
    assert not page.locator(".flat .chart").first.is_visible()


def test_the_bar_leads_to_the_parts(make_run: MakeRun, open_page: Any) -> None:
    page = open_page(make_run().report_path, height=400)
    assert texts(page, "#bar [data-part]:visible") == ["Results", "Tools", "Update", "Episodes", "Setup"]
    page.locator("#bar [data-part=browser]").click()
    page.wait_for_selector("#bar [data-part=browser][aria-current=true]")
    assert page.locator("#browser").bounding_box()["y"] < 100
    assert page.locator("#bar").bounding_box()["y"] == 0


def test_failures_come_first_and_filters_narrow(
    tmp_path: Path, make_episode: Callable[..., Episode], open_page: Any
) -> None:
    folder = RunFolder.create(tmp_path / "r", {}, total_steps=1)
    for index in range(12):
        folder.episode_store.add(
            make_episode(index, correct=index % 3 != 0, failed=index == 7, question=f"Task {index}?")
        )
    folder.metrics.append(StepReport(1, "train", {}), folder.episode_store.close_step(1, "train"))
    page = open_page(write_report(folder))
    assert texts(page, "#list .what")[:2] == ["! Task 7?", "✗ Task 0?"]
    assert texts(page, "#filters .verdicts button") == ["all12", "failed1", "wrong4", "correct7"]
    page.locator("#outcomes .wrong").click()
    assert texts(page, "output")[-1] == "4 of 12 shown"
    page.locator("[aria-label='reward ≥']").fill("0.5")
    assert texts(page, "#detail .empty") == ["No episode fits these filters."]
    page.locator("#filters .wrong").click()
    page.get_by_label("search").fill("answered 5")
    assert texts(page, "output")[-1] == "7 of 12 shown"
    page.get_by_label("all stop reasons").select_option("error")
    page.get_by_label("search").fill("failed in the tool (add): no connection")
    page.get_by_label("all tools").select_option("add")
    assert texts(page, "#detail h3") == ["t7#7"]
    # The address keeps all of it.
    again = open_page(folder.report_path, page.evaluate("location.hash"))
    assert texts(again, "#list .what") == ["! Task 7?"]


def test_an_episode_has_an_address(make_run: MakeRun, open_page: Any) -> None:
    folder = make_run()
    page = open_page(folder.report_path, "#episode=t9%239")
    assert texts(page, "#detail h3") == ["t9#9"]
    page.keyboard.press("k")
    assert "episode=t9%239" not in page.url
    page.evaluate("location.hash = 'episode=t1%231&tab=rewards'")
    page.locator("#detail h3", has_text="t1#1").wait_for()
    assert " ".join(texts(page, "#detail tbody tr")[1].split()) == "step:add turn 1 0.500 0.200 0.100"


def test_siblings_stand_side_by_side_with_their_advantages(
    tmp_path: Path, make_episode: Callable[..., Episode], open_page: Any
) -> None:
    config = {"algorithm": {"baseline": "group_mean", "scale": "none", "group_size": 4}}
    folder = RunFolder.create(tmp_path / "r", config, total_steps=1)
    for index in range(4):
        episode = make_episode(index, correct=index == 2)
        object.__setattr__(episode, "group", "train-1/0/t")
        folder.episode_store.add(episode)
    folder.metrics.append(StepReport(1, "train", {}), folder.episode_store.close_step(1, "train"))
    page = open_page(write_report(folder), "#tab=group&episode=t2%232")
    page.wait_for_selector(".columns .text.model")
    heads = [" ".join(text.split()) for text in texts(page, ".columns section > button")]
    assert heads == ["✗ #0 0.100-0.250", "✗ #1 0.100-0.250", "✓ #2 1.10+0.750", "✗ #3 0.100-0.250"]
    assert texts(page, ".columns section:nth-child(3) .text.model") == ["<tool_call>add</tool_call>", "5"]
    page.locator(".columns section > button").first.click()
    assert texts(page, "#detail h3") == ["t0#0"]


def test_tokens_are_colored_by_who_wrote_them(make_run: MakeRun, open_page: Any) -> None:
    page = open_page(make_run().report_path, "#tab=tokens&step=2&verdict=wrong")
    spans = page.locator(".tokens span")
    assert [span.get_attribute("class") for span in spans.all()] == (
        ["prompt"] * 4 + ["model"] * 3 + ["tool"] * 2 + ["model"] * 2
    )
    assert spans.nth(4).get_attribute("title") == "token 4 · id 10 · log-probability -0.1 · probability 90.5 %"
    assert spans.nth(4).inner_text() == "‹10›"


def test_the_conversation_begins_with_what_the_template_added(make_run: MakeRun, open_page: Any) -> None:
    folder = make_run(question="Sum?")
    preamble = "system: tools: " + "add(a, b) " * 10
    (folder.directory / "tokens.jsonl").write_text(f'{{"1":"{preamble}","2":"Su","3":"m?","4":"<end>"}}\n')
    page = open_page(write_report(folder))
    assert texts(page, ".text.template, .text.prompt") == [preamble.strip(), "Sum?"]


@pytest.mark.parametrize("tab", ["conversation", "group", "tokens", "rewards"])
def test_hostile_text_stays_text(make_run: MakeRun, open_page: Any, tab: str) -> None:
    folder = make_run(said=HOSTILE, question=HOSTILE, result=HOSTILE, failed=True, error=ValueError(HOSTILE))
    folder.add_tokens({13: HOSTILE})
    (folder.directory / "tokens.jsonl").write_text('{"13":"</script><script>document.title=\'hacked\'</script>"}\n')
    page = open_page(write_report(RunFolder.open(folder.directory)), f"#tab={tab}")
    page.wait_for_selector("#detail h3")
    assert page.locator("img").count() == 0
    assert "Failed in the tool (add)" in page.content()
    assert tab != "conversation" or "⟨U+202E⟩" in page.content()


def test_an_evaluation_begins_with_a_table_and_has_no_charts(make_run: MakeRun, open_page: Any) -> None:
    folder = RunFolder.create(make_run().directory.parent / "e", {}, total_steps=0)
    folder.metrics.append(StepReport(0, "eval", {"accuracy": 0.75, "accuracy/stderr": 0.05, "calls/mean": 1.5}), 0)
    for width in (1400, 400):
        page = open_page(write_report(folder), width=width)
        assert page.locator(".chart").count() == 0
        rows = [re.split(r"\s*[\t\n]\s*", text)[:3] for text in texts(page, ".metrics tbody tr")]
        assert rows[0][0] == "Accuracy"
        assert "75.0\u00a0% ± 5.0\u00a0%" in rows[0]
        assert texts(page, "#bar [data-part]:visible") == ["Results", "Episodes", "Setup"]


def test_axes_of_shares_end_at_100_percent(make_run: MakeRun, open_page: Any) -> None:
    folder = make_run()
    for step in range(1, 4):
        metrics = {"accuracy": 1.0, "calls/success": 0.97 + step / 100, "truncated": step / 1e3}
        folder.metrics.append(StepReport(step, "train", metrics), 2)
    page = open_page(write_report(folder))
    ticks = [text for text in page.locator(".chart text").all_text_contents() if text.endswith("%")]
    assert "100 %" in ticks
    assert max(float(text[:-2]) for text in ticks) == 100


def test_pages_with_nothing_to_draw(tmp_path: Path, open_page: Any) -> None:
    folder = RunFolder.create(tmp_path / "r", {}, total_steps=1)
    (tmp_path / "empty.html").write_text(build_page(folder))
    assert open_page(tmp_path / "empty.html").locator(".chart").count() == 0


def test_a_comparison_draws_all_runs(make_run: MakeRun, tmp_path: Path, open_page: Any) -> None:
    page = open_page(write_report(make_run("one"), tmp_path / "both.html", compare=[make_run("two", steps=1)]))
    legend = " ".join(texts(page, ".chart .legend"))
    for label in ("one · train", "two · train", "one · eval", "two · eval"):
        assert label in legend


def test_a_search_reads_conversations_and_calls(make_run: MakeRun, open_page: Any) -> None:
    page = open_page(make_run(result="it EXPLODED\n twice").report_path)
    page.keyboard.press("/")
    page.keyboard.type("it exploded twice")
    assert texts(page, "output")[-1] == "8 shown"
    page.get_by_label("search").fill("<tool_call>add")
    assert texts(page, "output")[-1] == "8 shown"
    page.get_by_label("search").fill("nowhere")
    assert texts(page, "output")[-1] == "0 of 8 shown"


def test_calls_stand_on_a_time_line(make_run: MakeRun, open_page: Any) -> None:
    page = open_page(make_run().report_path)
    bars = page.locator(".timeline span")
    assert bars.all_inner_texts() == ["turn 1", "add", "turn 2"]
    assert bars.nth(1).get_attribute("title") == "add · 250 ms · from 500 ms"
    boxes = [bar.bounding_box() for bar in bars.all()]
    assert [box["x"] for box in boxes] == sorted(box["x"] for box in boxes)
    assert boxes[1]["width"] > 2 * boxes[2]["width"], "0.25 s and 0.1 s"


def test_an_episode_can_be_kept_as_json(make_run: MakeRun, open_page: Any) -> None:
    page = open_page(make_run(said=HOSTILE).report_path, "#tab=json&episode=t1%231")
    page.locator("#detail pre", has_text='"id": "t1#1"').wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "t1#1.json"
    assert json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["reward"] == pytest.approx(0.1)


def test_the_log_of_a_run_is_text(make_run: MakeRun, open_page: Any) -> None:
    folder = make_run()
    log = RunLog()
    log.open(folder.directory)
    log.add(logging.WARNING, "toolrl.x", f"the template ignores tools {HOSTILE}")
    log.close()
    page = open_page(write_report(folder))
    assert texts(page, "#bar [data-part]:visible")[-2] == "Log"
    (line,) = texts(page, ".log .warn")
    assert "WARNING toolrl.x: the template ignores tools </script><script>" in line
    assert page.locator("img").count() == 0
