"""What `worker_kill_battery.py` kills: which process stands in a place now, and when another one works there.

Processes are looked for among those that a run has started, never among others.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
STORE = 100 * 2**20
WORKERS = 2
QUIET = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0", "RAY_AUTH_MODE": "disabled"}


class Run:
    """A run that goes on, and what it says of itself."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid = pid
        self.folder = folder

    def status(self) -> dict[str, Any]:
        """What it told last; empty before that."""
        try:
            facts: dict[str, Any] = json.loads((self.folder / ".status.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return facts

    def workers(self) -> dict[int, dict[str, Any]]:
        """What it says of each rollout worker."""
        return {it["worker"]: it for it in self.status().get("workers", [])}

    def logged_pid(self, log: str) -> int | None:
        """The process that began a worker's log last, if it lives."""
        try:
            text = (self.folder / "workers" / log).read_text()
        except FileNotFoundError:
            return None
        found = text.rpartition("starts: process ")[2].split()[:1]
        return int(found[0]) if found and command(int(found[0])) else None

    def last_step(self) -> float:
        """When the last step was complete, by the machine's clock; 0 before the first."""
        try:
            lines = (self.folder / "metrics.jsonl").read_text().splitlines()
            return max((float(json.loads(line)["time"]) for line in lines[-2:]), default=0.0)
        except (FileNotFoundError, ValueError):
            return 0.0

    def good_calls(self, worker: int | None = None) -> int:
        """Calls of tools that were answered without an error, of one worker or of all."""
        found = [it for number, it in self.workers().items() if worker in (None, number)]
        return sum(tool["calls"] - tool["errors"] for it in found for tool in it.get("tools", {}).values())


class Place:
    """A place that one process holds at a time, chosen by chance among those of its kind."""

    steps = 60
    """Of a run, for each kill."""

    def __init__(self, run: Run, chance: random.Random, cluster: Any) -> None:
        self.run = run
        self.cluster = cluster
        self.number = chance.randrange(WORKERS)

    @staticmethod
    def config(tool: dict[str, Any]) -> dict[str, Any]:
        """What the run's config has in `environments.default.tools`, in `cluster` and in `trainer`."""
        return {"tools": [tool], "cluster": {}}

    def ready(self) -> bool:
        """Whether the run is so far that it can be killed."""
        return bool(self.run.workers())

    def pid(self) -> int | None:
        """The process that is there now."""
        raise NotImplementedError

    def kill(self) -> None:
        """End it by SIGKILL."""
        if (pid := self.pid()) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def recovered(self, killed: set[int]) -> bool:
        """Whether another one works in the place of those that were killed."""
        raise NotImplementedError

    def heal(self) -> None:
        """After it has recovered: put back what only a person would."""


class Rollout(Place):
    """Rollout workers, whatever they do: start, sample, take weights, wait."""

    def pid(self) -> int | None:
        return self.run.logged_pid(f"worker-{self.number}.log")

    def recovered(self, killed: set[int]) -> bool:
        now = self.run.workers().get(self.number, {})
        return now.get("state") == "ready" and now.get("pid") not in {*killed, None}


class _Counting(Place):
    """A place whose recovery shows in calls that are answered again."""

    _begun = 0
    _seen: tuple[int, int] | None = None

    def calls(self) -> int:
        raise NotImplementedError

    def ready(self) -> bool:
        return self.calls() > 0

    def recovered(self, killed: set[int]) -> bool:
        """Another process is there, and calls were answered in two more looks of the run at itself: those of the first
        may have been answered before."""
        now = self.pid()
        if now is None or now in killed:
            return False
        if self._seen is None or self._seen[0] != now:
            self._seen, self._begun = (now, self.calls()), 0
        elif self.calls() > self._seen[1]:
            self._seen, self._begun = (now, self.calls()), self._begun + 1
        return self._begun >= 2


class Limiter(_Counting):
    """The process of the cluster-wide limiter, which every call of the run's tool waits for."""

    steps = 25

    @staticmethod
    def config(tool: dict[str, Any]) -> dict[str, Any]:
        policy = {"concurrency": 2, "limit_scope": "cluster", "limit_lease": 5}
        return {"tools": [{**tool, "policy": policy}], "cluster": {}}

    def pid(self) -> int | None:
        return next((it for it in below(self.run.pid) if command(it).startswith("ray::LimitActor")), None)

    def calls(self) -> int:
        return self.run.good_calls()


class Mcp(_Counting):
    """MCP servers over stdio, one of each rollout worker, which the run's tool comes from; in three of ten cases the
    guard that stands before one."""

    steps = 30

    def __init__(self, run: Run, chance: random.Random, cluster: Any) -> None:
        super().__init__(run, chance, cluster)
        self._guard = chance.random() < 0.3

    @staticmethod
    def config(tool: dict[str, Any]) -> dict[str, Any]:
        server = {"command": sys.executable, "args": [str(HERE / "calculator_server.py")]}
        options = {"servers": {"sums": server}, "names": "short", "restart": {"attempts": 20}}
        return {"tools": [{"use": "mcp", "options": options}], "cluster": {}}

    def pid(self) -> int | None:
        worker = self.run.workers().get(self.number, {}).get("pid")
        commands = {it: command(it) for it in below(worker)} if worker else {}
        found = {it: words for it, words in commands.items() if "calculator_server" in words}
        return next((it for it, words in found.items() if ("guard.py" in words) == self._guard), None)

    def calls(self) -> int:
        return self.run.good_calls(self.number)


class Trainer(Place):
    """Trainer workers, whatever they do. One that dies takes the group with it, and its rollout workers."""

    steps = 50
    _struck = 0.0
    """When, by the machine's clock."""

    @staticmethod
    def config(tool: dict[str, Any]) -> dict[str, Any]:
        cluster = {"trainer_workers": WORKERS, "trainer_cpus": 0, "trainer_restarts": 20}
        return {"tools": [tool], "cluster": cluster, "trainer": {"save_every": 5}}

    def ready(self) -> bool:
        return self.run.last_step() > 0

    def pid(self) -> int | None:
        return self.run.logged_pid(f"trainer-{self.number}.log")

    def kill(self) -> None:
        super().kill()
        self._struck = time.time()

    def recovered(self, killed: set[int]) -> bool:
        """Every rank is another process, and they have trained a step."""
        pids = [self.run.logged_pid(f"trainer-{rank}.log") for rank in range(WORKERS)]
        return not {None, *killed}.intersection(pids) and self.run.last_step() > self._struck


class Node(Rollout):
    """The node on which a rollout worker is: its raylet, and all processes below it. There are three nodes with room
    for two workers each, so that there is always another."""

    _gone: Any = None

    @staticmethod
    def config(tool: dict[str, Any]) -> dict[str, Any]:
        return {"tools": [tool], "cluster": {"worker_cpus": 1}}

    def kill(self) -> None:
        worker = self.pid()
        for node in list(self.cluster.worker_nodes):
            for process in node.all_processes.get("raylet", []):
                all_of_it = [process.process.pid, *below(process.process.pid)]
                if worker in all_of_it:
                    self._gone = node
                    for pid in all_of_it:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)

    def heal(self) -> None:
        """Another node in the place of the one that was lost."""
        if self._gone is not None:
            self.cluster.remove_node(self._gone, allow_graceful=False)
            add_node(self.cluster)


KINDS: dict[str, type[Place]] = {"rollout": Rollout, "limiter": Limiter, "mcp": Mcp, "node": Node, "trainer": Trainer}


@contextmanager
def cluster_for(kind: type[Place]) -> Iterator[Any]:
    """The Ray cluster of a kind that needs one of its own, or None."""
    os.environ.update(QUIET)
    if kind is not Node:
        yield None
        return
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "include_log_monitor": False, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(3):
            add_node(cluster)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Any) -> None:
    """A node more, with room for two workers."""
    cluster.add_node(num_cpus=WORKERS, include_log_monitor=False, object_store_memory=STORE)


def below(pid: int) -> list[int]:
    """All processes that descend from one."""
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def command(pid: int) -> str:
    """A process's command line; empty where it has ended."""
    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""
