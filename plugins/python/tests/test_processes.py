"""Counting what a tree of processes uses."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from toolrl_plugin_python.jail.processes import Process, Trees, private_memory, read_process, send
from toolrl_plugin_python.jail.usage import ProcessorTime

_TREE = """
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        block = bytearray(30 << 20)
    print("up", flush=True)
    time.sleep(60)
print("up", flush=True)
time.sleep(60)
"""


def test_a_tree_and_what_it_uses() -> None:
    trees = Trees()
    root = subprocess.Popen([sys.executable, "-c", _TREE], stdout=subprocess.PIPE)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert root.stdout is not None
        for _ in range(3):
            root.stdout.readline()
        trees.of({other.pid})  # the others are seen once before they are asked for
        tree = trees.of({root.pid})[root.pid]
        assert tree[0].pid == root.pid
        assert len(tree) == 3
        largest = max(tree, key=lambda process: process.resident)
        assert largest.resident > 30 << 20
        exact = private_memory(largest)
        assert exact is None or exact > 30 << 20
        assert all(process.cpu_seconds < 60 for process in tree)
        for process in tree[1:]:
            send(process, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while len(trees.of({root.pid})[root.pid]) > 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [process.pid for process in trees.of({root.pid})[root.pid]] == [root.pid]
    finally:
        for process in (root, other):
            process.kill()
            process.wait()
        assert root.stdout is not None
        root.stdout.close()
    assert trees.of({root.pid}) == {}


def test_a_number_that_is_used_again_is_not_signalled() -> None:
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process = read_process(victim.pid)
        assert process is not None
        from dataclasses import replace

        send(replace(process, started=process.started - 1), signal.SIGKILL)
        assert victim.poll() is None
        send(process, signal.SIGKILL)
        assert victim.wait(20) == -signal.SIGKILL
    finally:
        victim.kill()
        victim.wait()


_BEHIND = """
import ctypes, os, threading, time
def work():
    time.sleep(0.1)
    block = bytearray(30 << 20)
    print("up", flush=True)
    time.sleep(60)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_a_process_whose_first_thread_has_ended_is_no_zombie() -> None:
    root = subprocess.Popen([sys.executable, "-c", _BEHIND], stdout=subprocess.PIPE)
    try:
        assert root.stdout is not None
        root.stdout.readline()
        process = read_process(root.pid)
        assert process is not None
        assert process.state == "Z"
        assert process.is_alive
        assert process.resident > 30 << 20
        exact = private_memory(process)
        assert exact is None or exact > 30 << 20
    finally:
        root.kill()
        until = time.monotonic() + 20
        while (ended := read_process(root.pid)) is not None and ended.is_alive and time.monotonic() < until:
            time.sleep(0.02)
        assert ended is None or not ended.is_alive
        root.wait()
        assert root.stdout is not None
        root.stdout.close()


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
