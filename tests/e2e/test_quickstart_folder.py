"""The quickstart's script deletes what it made itself, and nothing else."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "quickstart" / "quickstart.py"


@pytest.fixture
def clear() -> Callable[[Path], None]:
    function: Callable[[Path], None] = runpy.run_path(str(SCRIPT))["clear"]
    return function


def test_a_folder_of_its_own_is_made_anew(clear: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "quickstart"
    clear(folder)
    (folder / "model").mkdir()
    (folder / "summary.json").write_text("{}")
    clear(folder)
    assert [path.name for path in folder.iterdir()] == [".quickstart"]


def test_other_files_are_left_alone(clear: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for place in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(SystemExit, match="--dir"):
            clear(place)
    assert (tmp_path / "thesis.tex").read_text() == "mine"
