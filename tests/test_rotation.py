"""Continuous integration runs every session of the noxfile, each time or by turns, or leaves it out for a reason."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROTATION = runpy.run_path(str(ROOT / ".ci" / "rotation.py"))


def _plugins(root: Path, *names: str) -> Path:
    for name in names:
        (root / "plugins" / name).mkdir(parents=True)
        (root / "plugins" / name / "pyproject.toml").touch()
    return root


def test_each_session_has_one_place() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    defined = re.findall(r"^@nox\.session.*\n(?:@.*\n)*def (\w+)", noxfile, re.MULTILINE)
    turning = dict.fromkeys(name.partition("(")[0] for name in ROTATION["sessions"]())
    assert sorted(defined) == sorted(["tests", *ROTATION["ALWAYS"], *ROTATION["LEFT_OUT"], *turning])
    assert not [name for name in ROTATION["SECONDS"] if name not in ROTATION["sessions"]()]


def test_each_session_of_the_rotation_has_one_turn_within_the_budget() -> None:
    estimates = ROTATION["sessions"]()
    turns = ROTATION["turns"](estimates)
    assert sorted(name for turn in turns for name in turn) == sorted(estimates)
    for turn in turns:
        assert len(turn) == 1 or sum(estimates[name] for name in turn) <= ROTATION["BUDGET"]


def test_a_new_plugin_takes_part(tmp_path: Path) -> None:
    assert "plugin(brand-new)" in ROTATION["sessions"](_plugins(tmp_path, "brand-new", "old"))


def test_commits_that_follow_each_other_reach_every_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _plugins(tmp_path, *(f"p{index}" for index in range(20)))
    turns = ROTATION["turns"](ROTATION["sessions"](root))
    seen = set()
    for commits in range(100, 100 + len(turns)):
        done = subprocess.CompletedProcess([], 0, stdout=f"{commits}\n", stderr="")
        monkeypatch.setattr(subprocess, "run", lambda *_, _done=done, **__: _done)
        seen |= set(ROTATION["this_landing"](root))
    assert seen == set(ROTATION["sessions"](root))


@pytest.mark.parametrize("counted", ["", "1\n", "fatal: not a repository"])
def test_without_the_history_the_files_choose(counted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 128, stdout=counted, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    (tmp_path / "core").mkdir()
    numbers = set()
    for text in ("a = 1\n", "a = 2\n", "a = 2\n"):
        (tmp_path / "core" / "a.py").write_text(text)
        numbers.add(ROTATION["number"](tmp_path))
    assert len(numbers) == 2


def test_git_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(ROTATION["this_landing"]()) <= set(ROTATION["sessions"]())


def test_it_prints_this_turn_and_the_next_ones() -> None:
    script = [sys.executable, str(ROOT / ".ci" / "rotation.py")]
    lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0].split()[1:] == ROTATION["this_landing"]()
    assert len(lines) == len(ROTATION["turns"](ROTATION["sessions"]()))
