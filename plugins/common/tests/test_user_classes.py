"""Classes of the user's, by module or by file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from toolrl.errors import ConfigError
from toolrl_common.user_classes import load_object, run_file


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    (tmp_path / "user_tools.py").write_text("class Mine:\n    class Inner:\n        pass\n")
    return tmp_path


def test_a_file_is_one_module_however_it_is_named(folder: Path) -> None:
    by_name = load_object("user_tools:Mine.Inner", None)
    assert load_object("./user_tools.py:Mine.Inner", None) is by_name
    assert run_file(folder / "user_tools.py", once=False).Mine.Inner is not by_name
    (folder / "below").mkdir()
    (folder / "below" / "user_more.py").write_text("X = 1\n")
    assert load_object("user_more:X", None, folders=["below"]) == 1


def test_a_file_imports_its_neighbours(folder: Path) -> None:
    (folder / "agents").mkdir()
    (folder / "agents" / "user_neighbour.py").write_text("X = 2\n")
    (folder / "agents" / "user_agent.py").write_text("from user_neighbour import X\n")
    assert load_object("agents/user_agent.py:X", None) == 2


@pytest.mark.parametrize(
    ("text", "reference", "says", "hint"),
    [
        ("", "user_broken:X", "has no 'X'", ""),
        ("import sys; sys.exit(3)", "user_broken.py:X", "can't be imported: SystemExit: 3", "line 1"),
        ("\n1 / 0", "user_broken:X", "can't be imported: ZeroDivisionError", "user_broken.py, line 2: 1 / 0"),
        ("import json\njson.loads('')", "user_broken:X", "JSONDecodeError", "user_broken.py, line 2"),
        ("def f(:", "user_broken:X", "SyntaxError: .*line 1", ""),
        ("import qwen_agent.nothing", "user_broken.py:X", "No module named 'qwen_agent", "pip install qwen-agent"),
        ("import user_absent", "user_broken.py:X", "No module named 'user_absent'", "the module 'user_absent' is in"),
        ("", "user_nowhere.py:X", "there is no Python file", ""),
        ("", "user_nowhere:X", "No module named 'user_nowhere'", "'user_nowhere'"),
    ],
)
def test_what_can_not_be_loaded_is_told(folder: Path, text: str, reference: str, says: str, hint: str) -> None:
    (folder / "user_broken.py").write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_object(reference, "tools[0]")
    assert caught.value.where == "tools[0]"
    assert hint in (caught.value.hint or "")
    assert "…" not in (caught.value.hint or "")
    assert "_toolrl_user_" not in " ".join(name for name in sys.modules if "broken" in name)
