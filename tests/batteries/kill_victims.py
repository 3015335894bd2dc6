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
WORKERS = TRAINERS = 2
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


class Target:
    """A place that one process holds at a time."""

    def __init__(self, run: Run) -> None:
        self.run = run

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


class RolloutPlace(Target):
    """A rollout worker."""

    def __init__(self, run: Run, number: int) -> None:
        super().__init__(run)
        self.number = number

    def pid(self) -> int | None:
        return self.run.logged_pid(f"worker-{self.number}.log")

    def recovered(self, killed: set[int]) -> bool:
        now = self.run.workers().get(self.number, {})
        return now.get("state") == "ready" and now.get("pid") not in {*killed, None}


class Rollout:
    """Rollout workers, whatever they do: start, sample, take weights, wait."""

    steps = 60

    def config(self, tool: dict[str, Any]) -> dict[str, Any]:
        return {"tools": [tool], "cluster": {}}

    def target(self, run: Run, chance: random.Random) -> Target | None:
        return RolloutPlace(run, chance.randrange(WORKERS)) if run.workers() else None


class _Counting(Target):
    """A place whose recovery shows in calls that are answered again."""

    _begun = 0
    _seen: tuple[int, int] | None = None

    def calls(self) -> int:
        raise NotImplementedError

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


class LimiterPlace(_Counting):
    """The actor with the cluster's limits."""

    def pid(self) -> int | None:
        return next((it for it in below(self.run.pid) if command(it).startswith("ray::LimitActor")), None)

    def calls(self) -> int:
        return self.run.good_calls()


class Limiter:
    """The process of the cluster-wide limiter, which every call of the run's tool waits for."""

    steps = 25

    def config(self, tool: dict[str, Any]) -> dict[str, Any]:
        policy = {"concurrency": 2, "limit_scope": "cluster", "limit_lease": 5}
        return {"tools": [{**tool, "policy": policy}], "cluster": {}}

    def target(self, run: Run, chance: random.Random) -> Target | None:
        place = LimiterPlace(run)
        return place if run.good_calls() and place.pid() is not None else None


class ServerPlace(_Counting):
    """An MCP server of one rollout worker, or the guard that stands before it."""

    def __init__(self, run: Run, number: int, mark: str) -> None:
        super().__init__(run)
        self.number = number
        self._mark = mark

    def pid(self) -> int | None:
        worker = self.run.workers().get(self.number, {}).get("pid")
        return next((it for it in below(worker) if self._is(command(it))), None) if worker else None

    def calls(self) -> int:
        return self.run.good_calls(self.number)

    def _is(self, words: str) -> bool:
        return "calculator_server" in words and ("guard.py" in words) == (self._mark == "guard")


class Mcp:
    """MCP servers over stdio, which the run's tool comes from, and their guards."""

    steps = 30

    def config(self, tool: dict[str, Any]) -> dict[str, Any]:
        server = {"command": sys.executable, "args": [str(HERE / "calculator_server.py")]}
        options = {"servers": {"sums": server}, "names": "short", "restart": {"attempts": 20}}
        return {"tools": [{"use": "mcp", "options": options}], "cluster": {}}

    def target(self, run: Run, chance: random.Random) -> Target | None:
        mark = "guard" if chance.random() < 0.3 else "server"
        place = ServerPlace(run, chance.randrange(WORKERS), mark)
        return place if run.good_calls(place.number) and place.pid() is not None else None


class TrainerPlace(Target):
    """A trainer worker, one rank of the group."""

    def __init__(self, run: Run, rank: int) -> None:
        super().__init__(run)
        self.rank = rank
        self._struck = 0.0
        """When, by the machine's clock."""

    def pid(self) -> int | None:
        return self.run.logged_pid(f"trainer-{self.rank}.log")

    def kill(self) -> None:
        super().kill()
        self._struck = time.time()

    def recovered(self, killed: set[int]) -> bool:
        """Every rank is another process, and they have trained a step."""
        pids = [self.run.logged_pid(f"trainer-{rank}.log") for rank in range(TRAINERS)]
        return not {None, *killed}.intersection(pids) and self.run.last_step() > self._struck


class Trainer:
    """Trainer workers, whatever they do. One that dies takes the group with it, and its rollout workers."""

    steps = 50

    def config(self, tool: dict[str, Any]) -> dict[str, Any]:
        cluster = {"trainer_workers": TRAINERS, "trainer_cpus": 0, "trainer_restarts": 20}
        return {"tools": [tool], "cluster": cluster, "trainer": {"save_every": 5}}

    def target(self, run: Run, chance: random.Random) -> Target | None:
        return TrainerPlace(run, chance.randrange(TRAINERS)) if run.last_step() else None


class NodePlace(RolloutPlace):
    """The node on which a rollout worker is: its raylet, and all processes below it."""

    def __init__(self, run: Run, number: int, cluster: Any) -> None:
        super().__init__(run, number)
        self._cluster = cluster
        self._gone: list[Any] = []

    def kill(self) -> None:
        worker = self.pid()
        for node in list(self._cluster.worker_nodes):
            for process in node.all_processes.get("raylet", []):
                all_of_it = [process.process.pid, *below(process.process.pid)]
                if worker in all_of_it:
                    self._gone.append(node)
                    for pid in all_of_it:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)

    def heal(self) -> None:
        """Another node in the place of each one that was lost."""
        while self._gone:
            self._cluster.remove_node(self._gone.pop(), allow_graceful=False)
            add_node(self._cluster)


class Node:
    """Nodes of a Ray cluster. There are three with room for two workers each, so that there is always another."""

    steps = 60

    def __init__(self) -> None:
        self.cluster: Any = None

    def config(self, tool: dict[str, Any]) -> dict[str, Any]:
        return {"tools": [tool], "cluster": {"address": self.cluster.address, "worker_cpus": 1}}

    def target(self, run: Run, chance: random.Random) -> Target | None:
        return NodePlace(run, chance.randrange(WORKERS), self.cluster) if run.workers() else None


# A kind has `steps`, those of a run for each kill, `config(tool)`, what the run's config has in
# `environments.default.tools`, in `cluster` and in `trainer`, and `target(run, chance)`, a place chosen by chance.
KINDS: dict[str, type[Any]] = {"rollout": Rollout, "limiter": Limiter, "mcp": Mcp, "node": Node, "trainer": Trainer}


@contextmanager
def kind_of(name: str) -> Iterator[Any]:
    """The kind of this name, with what it needs."""
    os.environ.update(QUIET)
    kind = KINDS[name]()
    if not isinstance(kind, Node):
        yield kind
        return
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "include_log_monitor": False, "object_store_memory": STORE}
    kind.cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(3):
            add_node(kind.cluster)
        kind.cluster.wait_for_nodes()
        yield kind
    finally:
        kind.cluster.shutdown()


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


def wait_for_another(target: Target, killed: set[int], alive: Any) -> int | None:
    """The next process in a place, as soon as there is one."""
    while alive():
        pid = target.pid()
        if pid is not None and pid not in killed:
            return pid
        time.sleep(0.05)
    return None
