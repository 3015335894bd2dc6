"""A run as a notebook shows it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from toolrl.runs.folder import RunFolder


@pytest.mark.parametrize("name", ["first", "<script>alert(1)</script>", 'a" onclick="b', "a#b?c &amp;"])
def test_a_card_escapes_names_and_links_to_the_report(
    name: str, make_run: Callable[..., RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_run().directory
    place = directory.rename(directory.with_name("moved"))
    # A name with a slash is a folder in a folder.
    target = tmp_path / "runs" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    place.rename(target)
    monkeypatch.chdir(tmp_path)
    run = RunFolder.open(target)
    assert "href" not in run._repr_html_()
    run.report_path.write_text("report")
    card = run._repr_html_()
    assert "finished, 3 of 3 steps" in card
    assert "eval accuracy, step 3" in card
    assert re.findall(r"<(\w+)", card).count("script") == 0
    (link,) = re.findall(r'href="([^"]*)"', card)
    assert not set(link) & set('<>"#? ')
    assert repr(run) == f"<RunFolder {str(run.directory)!r}: finished, 3 of 3 steps>"


def test_a_damaged_run_is_shown_all_the_same(make_run: Callable[..., RunFolder]) -> None:
    run = RunFolder.open(make_run().directory)
    (run.directory / "summary.json").write_text("{")
    (run.directory / "metrics.jsonl").write_text("nonsense\n{}\n")
    assert "unreadable" in repr(run)
    assert "unreadable" in run._repr_html_()
