"""The report in a real browser: the script runs without an error and draws what it should, hostile text included."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from toolrl.runs.folder import RunFolder
from toolrl_plugin_report.page import build_page, write_report

MakeRun = Callable[..., RunFolder]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
HOSTILE = "</script><script>document.title='hacked'</script><img src=x onerror=document.title='hacked'>\u202e"


def dump(path: Path, tmp_path: Path, fragment: str = "") -> tuple[str, str]:
    """The page's elements after its script has run, and what the browser said."""
    assert BROWSER is not None
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-dev-shm-usage",
    ]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=3000"]
    command = [BROWSER, *options, "--dump-dom", f"{path.as_uri()}{fragment}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def check(page: str, said: str) -> None:
    """The script reached its end, and neither it nor the page's policy complained."""
    assert 'data-ready="yes"' in page
    assert not re.findall(r"CONSOLE.*", said)
    assert "hacked" not in re.findall(r"<title>(.*?)</title>", page)[0]


def test_charts_and_episodes_are_drawn(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    page, said = dump(folder.report_path, tmp_path)
    check(page, said)
    assert len(re.findall(r'<div class="chart">', page)) == 4  # accuracy, reward, loss, time
    assert re.search(r'<path d="M[\d. ]+L', page)
    assert "3 not finite" in page
    assert len(re.findall(r"<li><button", page)) == 8
    assert '<div class="text model">&lt;tool_call&gt;add&lt;/tool_call&gt;</div>' in page


def test_tokens_are_colored_by_who_wrote_them(make_run: MakeRun, tmp_path: Path) -> None:
    page, said = dump(make_run().report_path, tmp_path, "#tab=tokens&step=2&verdict=wrong")
    check(page, said)
    assert ">1 shown<" in page
    spans = re.findall(r'<span class="(prompt|model|tool)" title="([^"]*)">([^<]*)</span>', page)
    assert [origin for origin, _, _ in spans] == ["prompt"] * 4 + ["model"] * 3 + ["tool"] * 2 + ["model"] * 2
    assert spans[4][1] == "token 4 · id 10 · log-probability -0.1 · probability 90.5 %"
    assert spans[4][2] == "‹10›"


def test_rewards_are_listed(make_run: MakeRun, tmp_path: Path) -> None:
    page, said = dump(make_run().report_path, tmp_path, "#tab=rewards&kind=eval")
    check(page, said)
    assert re.search(r"<th>step:add</th><td>turn 1</td><td>0.500</td><td>0.200</td><td>0.100</td>", page)


def test_search_finds_text_and_says_when_nothing_fits(make_run: MakeRun, tmp_path: Path) -> None:
    page, said = dump(make_run().report_path, tmp_path, "#search=no+such+text")
    check(page, said)
    assert "No episode fits these filters." in page


@pytest.mark.parametrize("tab", ["conversation", "tokens", "rewards"])
def test_hostile_text_stays_text(make_run: MakeRun, tmp_path: Path, tab: str) -> None:
    folder = make_run(said=HOSTILE, question=HOSTILE, result=HOSTILE, failed=True, error=ValueError(HOSTILE))
    folder.add_tokens({13: HOSTILE})
    (folder.directory / "tokens.jsonl").write_text('{"13":"</script><script>document.title=\'hacked\'</script>"}\n')
    write_report(RunFolder.open(folder.directory))
    page, said = dump(folder.report_path, tmp_path, f"#tab={tab}")
    check(page, said)
    assert "<img" not in page
    assert "Failed in the tool (add)" in page
    if tab == "conversation":
        assert "⟨U+202E⟩" in page


def test_pages_with_nothing_to_draw(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "r", {}, total_steps=1)
    (tmp_path / "empty.html").write_text(build_page(folder))
    page, said = dump(tmp_path / "empty.html", tmp_path)
    check(page, said)
    assert '<div class="chart">' not in page


def test_a_comparison_draws_all_runs(make_run: MakeRun, tmp_path: Path) -> None:
    path = write_report(make_run("one"), tmp_path / "both.html", compare=[make_run("two", steps=1)])
    page, said = dump(path, tmp_path)
    check(page, said)
    for label in ("one · train", "two · train", "one · eval", "two · eval"):
        assert label in page
