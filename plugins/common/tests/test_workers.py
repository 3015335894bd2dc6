"""Worker processes: real ones, of a module that is written for the purpose."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path

import pytest

from toolrl.tools.subprocess_pool import ProcessCrashError
from toolrl_common.workers import RestartingWorker, WorkerError, WorkerThreads

MODULE = """
import os, sys, time

def build(*arguments):
    if "--broken" in arguments:
        raise ImportError("no such library")
    if "--silent" in arguments:
        os._exit(3)
    return answer

def answer(request):
    if request["do"] == "die":
        os._exit(1)
    if request["do"] == "sleep":
        time.sleep(600)
    if request["do"] == "fork" and not os.fork():
        time.sleep(600)
    if request["do"] == "fail":
        raise ValueError("that can't be done")
    print("noise")
    seen = sorted(name for name in os.environ if name.startswith("SEEN_"))
    return {"pid": os.getpid(), "seen": seen}
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "an_answering_module.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def worker(*arguments: str) -> RestartingWorker:
    return RestartingWorker("an_answering_module", *arguments)


def gone(pid: int) -> bool:
    """Whether a process ends, or with a negative number its group."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_one_process_answers_all_questions_and_ends_when_closed() -> None:
    asked = worker()
    first, second = (asked.ask({"do": "say"}, 60) for _ in range(2))
    assert first["pid"] == second["pid"]
    asked.close()
    asked.close()
    assert gone(first["pid"])


@pytest.mark.parametrize(("question", "seconds"), [("die", 60.0), ("sleep", 0.2)])
def test_a_worker_that_dies_or_takes_too_long_is_replaced(question: str, seconds: float) -> None:
    asked = worker()
    pid = asked.ask({"do": "say"}, 60)["pid"]
    with pytest.raises(ProcessCrashError):
        asked.ask({"do": question}, seconds)
    assert gone(pid)
    assert asked.ask({"do": "say"}, 60)["pid"] != pid
    asked.close()


@pytest.mark.parametrize(("flag", "said"), [("--broken", "no such library"), ("--silent", "ended with status 3")])
def test_a_worker_that_does_not_start_says_why_and_how_to_try(flag: str, said: str) -> None:
    with pytest.raises(WorkerError, match=f"{said}.*By hand: .*an_answering_module.*{flag}"):
        worker(flag).ask({"do": "say"}, 60)


def test_what_a_worker_forked_ends_with_it() -> None:
    asked = worker()
    pid = asked.ask({"do": "fork"}, 60)["pid"]
    asked.close()
    assert gone(-pid)  # The whole group.


def test_only_the_given_environment_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN_SECRET", "hunter2")
    given = {"PYTHONPATH": os.environ["PYTHONPATH"], "SEEN_GIVEN": "1"}
    asked = RestartingWorker("an_answering_module", environment=given)
    assert asked.ask({"do": "say"}, 60)["seen"] == ["SEEN_GIVEN"]
    asked.close()


def test_workers_share_the_questions_and_end_with_their_object() -> None:
    async def ask_all(workers: WorkerThreads, count: int) -> list[int]:
        return await asyncio.gather(
            *(workers.run(lambda asked: int(asked.ask({"do": "say"}, 60)["pid"])) for _ in range(count))
        )

    workers = WorkerThreads(2, worker, name="answering")
    pids = set(asyncio.run(ask_all(workers, 8)))
    assert 1 <= len(pids) <= 2
    del workers
    gc.collect()
    assert all(gone(pid) for pid in pids)


def test_a_folder_of_the_user_cannot_stand_for_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "an_answering_module.py").write_text("raise ValueError\n")
    monkeypatch.chdir(elsewhere)
    asked = worker()
    assert asked.ask({"do": "say"}, 60)["pid"]
    asked.close()
