"""Counting what a tree of processes uses."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

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
