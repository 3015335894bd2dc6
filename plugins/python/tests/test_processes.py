"""Counting what a tree of processes uses, and removing what it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from toolrl_plugin_python.jail.disk import remove_tree
from toolrl_plugin_python.jail.processes import Process, read_process, send
from toolrl_plugin_python.jail.usage import ProcessorTime


def test_a_number_that_is_used_again_is_not_signalled() -> None:
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process = read_process(victim.pid)
        assert process is not None
        send(replace(process, started=process.started - 1), signal.SIGKILL)
        assert victim.poll() is None
        send(process, signal.SIGKILL)
        assert victim.wait(20) == -signal.SIGKILL
    finally:
        victim.kill()
        victim.wait()


def one(pid: int, own: float, with_children: float = 0.0) -> Process:
    return Process(pid, 1, "R", own + with_children, 1000, 0, own_seconds=own)


def test_processor_time_of_children_that_nobody_waits_for_counts() -> None:
    time_of = ProcessorTime()
    assert time_of.look([one(1, 1.0)]) == 1.0
    assert time_of.look([one(1, 1.0), one(2, 3.0)]) == 4.0
    assert time_of.look([one(1, 1.0)]) == 4.0  # nobody waited
    assert time_of.look([one(1, 1.0, with_children=5.0)]) == 6.0  # somebody did, and it had used more since
    time_of.renew()
    assert time_of.look([one(1, 2.5, with_children=5.0)]) == 1.5


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
    remove_tree(top)
    assert (outside / "kept").read_text() == "kept"
