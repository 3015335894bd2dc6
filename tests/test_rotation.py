"""Continuous integration runs every session of the noxfile, each time or by turns, or leaves it out for a reason."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

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


def test_the_files_decide_and_every_session_has_its_turn(tmp_path: Path) -> None:
    root = _plugins(tmp_path, *(f"p{index}" for index in range(20)))
    (root / "core").mkdir()
    seen: list[frozenset[str]] = []
    for text in (*map("a = {}\n".format, range(100)), "a = 99\n"):
        (root / "core" / "a.py").write_text(text)
        seen.append(frozenset(ROTATION["this_landing"](root)))
    assert seen[-1] == seen[-2]
    assert frozenset.union(*seen) == set(ROTATION["sessions"](root))


def test_it_prints_all_turns_and_marks_this_one() -> None:
    script = [sys.executable, str(ROOT / ".ci" / "rotation.py")]
    lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(ROTATION["turns"](ROTATION["sessions"]()))
    (now,) = [line.split()[1:] for line in lines if line.startswith("now")]
    assert now == ROTATION["this_landing"]()
