"""Trainer workers without a cluster: a host and its rank's process, and what follows from how ranks end."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("toolrl_plugin_torch")

from toolrl.config.load import LoadedConfig
from toolrl.config.model import Config
from toolrl.errors import RunStoppedError
from toolrl_plugin_ray import rank_host
from toolrl_plugin_ray.messages import RankEnd, RankOrder
from toolrl_plugin_ray.rank_host import RankHost
from toolrl_plugin_ray.trainer_workers import outcome

DIED, LOST, FAILED, ENDED = RankEnd(-9, "…"), RankEnd(75), RankEnd(1, "why"), RankEnd(0)


@pytest.mark.parametrize(
    ("ended", "status", "death"),
    [
        ({0: ENDED, 1: ENDED}, 0, None),
        ({0: FAILED, 1: FAILED}, 1, None),
        ({0: RankEnd(143), 1: RankEnd(143)}, 143, None),
        ({0: ENDED, 1: DIED}, 0, None),
        ({1: DIED}, 0, "trainer worker 1 was ended by SIGKILL"),
        ({0: LOST, 1: DIED}, 0, "trainer worker 1 was ended by SIGKILL"),
        ({0: LOST}, 0, "trainer worker 0 lost the other ranks"),
        ({0: FAILED, 1: LOST}, 1, None),
        ({0: FAILED, 1: RankEnd(None, "node died")}, 0, "trainer worker 1 is lost (node died)"),
    ],
)
def test_a_death_is_told_from_an_end_and_an_error(ended: dict[int, RankEnd], status: int, death: str | None) -> None:
    found, reason = outcome(ended)
    assert found == status
    assert (reason or "").startswith(death or "")
    assert (reason is None) == (death is None)


def test_an_error_that_the_first_rank_did_not_print_is_raised() -> None:
    with pytest.raises(RunStoppedError, match=r"(?s)trainer worker 1 ended with status 1; its last log lines:.*why"):
        outcome({1: FAILED})
    with pytest.raises(RunStoppedError, match="trainer worker 1 ended with status 1"):
        outcome({0: LOST, 1: FAILED})
    with pytest.raises(RunStoppedError, match="didn't end with the others"):
        outcome({1: ENDED})


@pytest.fixture
def order(tmp_path: Path) -> RankOrder:
    """A rank whose model isn't there."""
    config = {"model": {"path": "nowhere"}, "run": {"dir": str(tmp_path)}, "environments": {"default": {}}}
    loaded = LoadedConfig(Config.model_validate(config), {}, "run.yaml")
    return RankOrder(loaded, str(tmp_path), resume=False, overwrite=False, json=False, environment={"RANK": "0"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "workers" / "trainer-0.log"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(rank_host, "own_address", lambda: "127.0.0.1")
    made = RankHost(0)
    yield made
    made.end()


def test_a_ranks_error_is_handed_on_and_logged(host: RankHost, order: RankOrder, log: Path) -> None:
    *printed, end = list(host.run(order, log, forward=True))
    assert isinstance(end, RankEnd)
    assert (end.status, end.killed) == (1, False)
    errors = b"".join(data for data, is_error in printed if is_error).decode()  # type: ignore[misc]
    assert "data.train" in errors
    assert "Traceback" not in errors
    text = log.read_text()
    assert text.startswith("trainer worker 0 starts: process ")
    assert errors in text


def test_a_process_that_is_killed_ends_its_generator(host: RankHost, order: RankOrder, log: Path) -> None:
    ends: list[Any] = []
    thread = threading.Thread(target=lambda: ends.extend(host.run(order, log, forward=False)))
    thread.start()
    while host._process is None:
        time.sleep(0.01)
    host.end()
    thread.join(60)
    (end,) = ends
    assert (end.status, end.killed) == (-9, True)
