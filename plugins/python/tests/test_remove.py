"""Removing folders that a hostile program filled."""

from __future__ import annotations

import os
from pathlib import Path

from toolrl_plugin_python.jail.remove import remove_tree


def test_depth_modes_and_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    top = tmp_path / "top"
    top.mkdir()
    here = Path.cwd()
    try:
        os.chdir(top)
        for _ in range(3000):  # far beyond the longest path
            Path("deeper").mkdir()
            os.chdir("deeper")
        Path("file").write_text("x")
    finally:
        os.chdir(here)
    (top / "link").symlink_to(outside)
    (top / "locked").mkdir()
    (top / "locked" / "file").write_text("x")
    (top / "locked" / "link").symlink_to(outside / "kept")
    (top / "locked").chmod(0)
    os.mkfifo(top / "fifo")
    (top / "odd \udcff\n name").write_text("x")
    remove_tree(top)
    assert not top.exists()
    assert (outside / "kept").read_text() == "kept"


def test_a_folder_that_is_gone_is_fine(tmp_path: Path) -> None:
    remove_tree(tmp_path / "never was")
