"""A trainer worker's part on its node, with processes that import nothing heavy."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from toolrl.cluster.messages import unpack_error
from toolrl.cluster.trainer_host import TrainerHost, _interface_of
from toolrl.cluster.trainer_messages import Output, StepDone, TrainerOrder
from toolrl.config.load import LoadedConfig
from toolrl.config.model import Config
from toolrl.errors import DataError

MODULE = """
import os, sys, time
from multiprocessing.connection import Connection
from toolrl.cluster.messages import pack_error
from toolrl.cluster.trainer_messages import Ended, StepDone
from toolrl.errors import DataError

def end_with_parent():
    import threading
    def wait():
        try:
            orders.recv()
        except EOFError:
            os._exit(1)
    threading.Thread(target=wait, daemon=True).start()

orders, events = (Connection(int(word)) for word in sys.argv[1:])
try:
    order, environment = orders.recv()
except EOFError:
    sys.exit(0)
end_with_parent()
what = order.cwd
print("rank", environment["RANK"], "of", environment["WORLD_SIZE"], environment["MASTER_PORT"], flush=True)
print("oh", file=sys.stderr, flush=True)
if what == "devices":
    print("sees", repr(os.environ.get("CUDA_VISIBLE_DEVICES")), flush=True)
    what = "well"
if what == "well":
    events.send(StepDone(3))
    print("the last word", flush=True)
    events.send(Ended(0))
elif what == "error":
    events.send(Ended(error=pack_error(DataError("no data")), said="error: no data\\n"))
elif what == "exit":
    os._exit(7)
elif what == "linger":
    events.send(Ended(0))
    time.sleep(600)
else:
    events.send(StepDone(1))
    time.sleep(600)
"""


def order_of(folder: Path, what: str, rank: int = 1) -> TrainerOrder:
    config = Config.model_validate({"model": {"path": "m"}, "environments": {"default": {}}})
    run_dir = folder / "run"
    run_dir.mkdir(exist_ok=True)
    return TrainerOrder(
        rank, 2, LoadedConfig(config, {}, "c"), what, str(run_dir), False, False, False, address="127.0.0.1", port=4711
    )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainerHost]:
    (tmp_path / "pretended_rank.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    made = TrainerHost("pretended_rank", "127.0.0.1")
    yield made
    made.stop()


def until_it_ends(host: TrainerHost, pid: int, silence: float = 600.0) -> Output:
    """All that it says, gathered."""
    gathered, end = Output(), time.monotonic() + 60
    while gathered.ended is None:
        assert time.monotonic() < end
        found = host.poll(pid, 1.0, silence)
        gathered.out += found.out
        gathered.err += found.err
        gathered.events += found.events
        gathered.ended = found.ended
    return gathered


def test_what_a_process_says_is_handed_on_and_kept(host: TrainerHost, tmp_path: Path) -> None:
    assert host.place().address == "127.0.0.1"
    pid = host.start(order_of(tmp_path, "well"))
    found = until_it_ends(host, pid)
    assert found.out == b"rank 1 of 2 4711\nthe last word\n", "the rest of it, too, after it told how it ended"
    assert found.err == b"oh\n"
    assert found.events == [StepDone(3)]
    assert found.ended is not None
    assert found.ended.status == 0
    log = (tmp_path / "run" / "workers" / "trainer-1.log").read_text()
    assert log.startswith(f"trainer worker 1 starts: process {pid} on ")
    assert "the last word\n" in log


@pytest.mark.parametrize(("gpus", "seen"), [(0, b"sees ''\n"), (1, b"sees '3'\n")])
def test_who_is_lent_no_gpu_sees_none(
    host: TrainerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, seen: bytes
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # Ray leaves the node's own where it lends none.
    lent = TrainerHost("pretended_rank", "127.0.0.1", gpus=gpus)
    pid = lent.start(order_of(tmp_path, "devices"))
    assert seen in until_it_ends(lent, pid).out
    lent.stop()


def test_an_error_is_told_and_stands_in_the_log(host: TrainerHost, tmp_path: Path) -> None:
    pid = host.start(order_of(tmp_path, "error"))
    ended = until_it_ends(host, pid).ended
    assert ended is not None
    assert ended.error is not None
    assert isinstance(unpack_error(ended.error), DataError)
    assert "error: no data" in host.last_lines()
    assert "error: no data\n" in (tmp_path / "run" / "workers" / "trainer-1.log").read_text()


def test_a_process_that_dies_tells_nothing(host: TrainerHost, tmp_path: Path) -> None:
    pid = host.start(order_of(tmp_path, "exit"))
    ended = until_it_ends(host, pid).ended
    assert ended is not None
    assert ended.death == "ended with status 7 and no reason"
    pid = host.start(order_of(tmp_path, "stay"))
    while not host.poll(pid, 1.0, 600.0).events:
        pass
    os.kill(pid, signal.SIGKILL)
    ended = until_it_ends(host, pid).ended
    assert ended is not None
    assert ended.death == "was ended by SIGKILL"


def test_a_process_that_says_nothing_is_taken_for_dead_and_can_be_ended(host: TrainerHost, tmp_path: Path) -> None:
    pid = host.start(order_of(tmp_path, "stay"))
    ended = until_it_ends(host, pid, silence=0.5).ended
    assert ended is not None
    assert str(ended.death).startswith("said nothing for")
    host.end()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_spare_process_waits_for_the_next_start(host: TrainerHost, tmp_path: Path) -> None:
    pid = host.start(order_of(tmp_path, "stay"))
    end = time.monotonic() + 60
    while (spare := host._spare) is None:
        host.poll(pid, 0.1, 600.0)
        assert time.monotonic() < end
    host.end()
    pid = host.start(order_of(tmp_path, "well"))
    assert pid == spare.process.pid
    ended = until_it_ends(host, pid).ended
    assert ended is not None
    assert ended.status == 0


def test_who_asks_after_a_former_process_takes_no_news_of_the_next(host: TrainerHost, tmp_path: Path) -> None:
    former = host.start(order_of(tmp_path, "stay"))
    heard = Output()
    while not (heard.out and heard.err and heard.events):
        found = host.poll(former, 1.0, 600.0)
        heard = Output(heard.out + found.out, heard.err + found.err, events=[*heard.events, *found.events])
    with ThreadPoolExecutor() as pool:
        left = pool.submit(host.poll, former, 600.0, 600.0)
        host.end()
        pid = host.start(order_of(tmp_path, "well"))
        found = until_it_ends(host, pid)
        assert not left.result(timeout=60).events
    assert found.events == [StepDone(3)]
    assert not host.poll(former, 600.0, 600.0).events


def test_a_process_ends_with_its_worker(host: TrainerHost, tmp_path: Path) -> None:
    """The pipe to it closes when the worker's process is gone, however that ended."""
    host.start(order_of(tmp_path, "stay"))
    child: Any = host._now
    child.orders.close()
    assert child.process.wait(timeout=60) == 1


def test_one_that_does_not_leave_after_its_last_word_is_ended(
    host: TrainerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolrl.cluster.trainer_host.EXIT_SECONDS", 0.5)
    pid = host.start(order_of(tmp_path, "linger"))
    ended = until_it_ends(host, pid).ended
    assert ended is not None
    assert ended.status == 0


def test_a_number_whose_process_is_gone_is_left_alone(
    host: TrainerHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have it by then."""
    monkeypatch.setattr("toolrl.cluster.trainer_host.EXIT_SECONDS", 0.5)
    killed: list[int] = []
    monkeypatch.setattr("toolrl.cluster.trainer_host.os.killpg", lambda pid, number: killed.append(pid))
    pid = host.start(order_of(tmp_path, "error"))
    until_it_ends(host, pid)
    time.sleep(1.0)  # Longer than it is waited for.
    host.end()
    assert killed == [pid], "once, for what it may have left, as soon as it was gone"


def test_the_interface_of_an_address() -> None:
    pytest.importorskip("fcntl")
    assert _interface_of("127.0.0.1") == "lo"
    assert _interface_of("198.51.100.7") is None
