"""Rollout workers as Ray actors, and the cluster that they run on: one that is there, or one started for the run.

Ray restarts nothing by itself here: a worker that died is replaced by `toolrl.cluster.line`, which knows what it was
sampling and which weights are current.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError, RayTaskError

from toolrl.cluster.limiter import NAMESPACE
from toolrl.cluster.line import KEPT_LOG, WorkerLostError
from toolrl.cluster.worker import RolloutWorker
from toolrl.config.cluster import ClusterConfig
from toolrl.errors import ConfigError

MOST_CALLS = 1000
"""Methods of a worker that may be under way at once."""
STORE_BYTES = 200 * 2**20
"""Of a cluster's object store, for episodes under way."""
KNOCK_SECONDS, WARNING_SECONDS = 10.0, 30.0

_log = logging.getLogger(__name__)


class RayCluster:
    """This process's part in a Ray cluster."""

    def __init__(self, config: ClusterConfig, store_bytes: int) -> None:
        """`store_bytes` is the size of the object store of a cluster that is started for the run."""
        self._config = config
        self._store_bytes = store_bytes
        self._joined = False

    def join(self) -> None:
        """Connect to the cluster that the config names, or start one. Raises ConfigError. Not from the main thread,
        where Ray would put signal handlers of its own that end the process without saving anything."""
        if not ray.is_initialized():
            self._connect()
            self._joined = True
        try:
            check_resources(self._config, [node for node in ray.nodes() if node["Alive"]])
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Disconnect, where `join` connected; a cluster that it started ends."""
        if self._joined:
            self._joined = False
            ray.shutdown()

    def spawn(self, number: int, log: Path) -> RayHandle:
        """Begin a worker's process; Ray starts it when there are resources."""
        config = self._config
        kind = ray.remote(RolloutWorker).options(
            num_cpus=config.worker_cpus,
            num_gpus=config.worker_gpus,
            resources=dict(config.worker_resources) or None,
            scheduling_strategy="SPREAD",
            max_concurrency=MOST_CALLS,
            max_restarts=0,
            max_task_retries=0,
        )
        return RayHandle(kind.remote(), log)

    def reason_of_wait(self, method: str) -> str:
        """Why a worker may not have started yet."""
        if method != "start":
            return ""
        with suppress(RayError, OSError):
            free = {key: value for key, value in ray.available_resources().items() if key in ("CPU", "GPU")}
            return f" (it asks for {_asked(self._config)}; free in the cluster: {_shown(free)})"
        return ""

    def _connect(self) -> None:
        address = self._config.address or os.environ.get("RAY_ADDRESS")
        local = {"address": "local", "include_dashboard": False, "object_store_memory": self._store_bytes}
        options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
        with _told_of_waiting(address):
            try:
                if address:
                    _knock(address)
                ray.init(**options, **({"address": address} if address else local))
            except (ConnectionError, TimeoutError, ValueError, RuntimeError, OSError, RayError) as error:
                reason = str(error).strip().partition("\n")[0] or type(error).__name__
                raise ConfigError(
                    f"cluster.address: the Ray cluster {address or 'of this machine'!r} can't be "
                    f"{'joined' if address else 'started'}: {reason}",
                    hint="`ray status --address ADDRESS` says how it is. Driver and nodes need the same versions of "
                    "Python and Ray. Leave cluster.address out to start a cluster on this machine for the run.",
                ) from error


async def joined(cluster: RayCluster) -> None:
    """Join it, in a thread, so that whoever ends the run meanwhile is heard."""
    joining = asyncio.ensure_future(asyncio.to_thread(cluster.join))
    try:
        await asyncio.shield(joining)
    except asyncio.CancelledError:
        await asyncio.wait([joining])
        cluster.leave()
        raise
    finally:
        _take_signals_back()


def _take_signals_back() -> None:
    """Ray's own handler, below Python's, prints a trace for SIGTERM before it passes the signal on."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
            signal.siginterrupt(signal.SIGTERM, False)


def _knock(address: str) -> None:
    """Raise OSError where nothing listens: Ray would try on for many minutes without a word."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


@contextmanager
def _told_of_waiting(address: str | None) -> Iterator[None]:
    """Say so where Ray takes long."""
    what = f"the Ray cluster {address!r}" if address else "a Ray cluster on this machine"
    timer = threading.Timer(WARNING_SECONDS, _log.warning, ["waiting for %s for %g s", what, WARNING_SECONDS])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def put(data: bytes) -> Any:
    """Into Ray's object store; as an array, so that readers on a node share one copy."""
    return ray.put(np.frombuffer(data, dtype=np.uint8))


def own_address() -> str:
    """This machine's address as the cluster knows it."""
    return str(ray.util.get_node_ip_address())


class RayHandle:
    """A worker's process as an actor."""

    def __init__(self, actor: Any, log: Path) -> None:
        self._actor = actor
        self._log = log

    def call(self, method: str, *arguments: Any) -> Awaitable[Any]:
        """See Handle."""
        return self._call(method, arguments)

    async def _call(self, method: str, arguments: Sequence[Any]) -> Any:
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, Exception) else error from None
        except (RayActorError, ObjectLostError, GetTimeoutError) as error:
            raise WorkerLostError(_reason(error)) from None
        except RayError as error:
            raise WorkerLostError(f"{type(error).__name__}: {_reason(error)}") from None

    def kill(self) -> None:
        """See Handle."""
        with suppress(Exception):
            ray.kill(self._actor, no_restart=True)

    def last_words(self) -> list[str]:
        """See Handle."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - 8192))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-KEPT_LOG:]


def check_resources(config: ClusterConfig, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Raises ConfigError where the nodes can't hold all workers, whoever else is on them."""
    wanted = {"CPU": config.worker_cpus, "GPU": config.worker_gpus, **config.worker_resources}
    wanted = {name: amount for name, amount in wanted.items() if amount > 0}

    def room(node: Mapping[str, Any]) -> float:
        has = node["Resources"]
        counts = (math.floor(has.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items())
        return min(counts, default=math.inf)

    def has(node: Mapping[str, Any]) -> str:
        return _shown({name: node["Resources"].get(name, 0.0) for name in wanted})

    places = sum(map(room, nodes))
    if places < config.rollout_workers:
        lines = "; ".join(f"{node.get('NodeManagerAddress', 'a node')} has {has(node)}" for node in nodes)
        raise ConfigError(
            f"cluster.rollout_workers: {config.rollout_workers} workers with {_asked(config)} each don't fit the Ray "
            f"cluster, which has room for {places:g} ({lines})",
            hint="Ask for fewer workers, or for less by cluster.worker_cpus, worker_gpus and worker_resources; or add "
            "nodes by `ray start --address ADDRESS`.",
        )


def _asked(config: ClusterConfig) -> str:
    return _shown({"CPU": config.worker_cpus, "GPU": config.worker_gpus, **config.worker_resources})


def _shown(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{value:g} {name}" for name, value in amounts.items() if value) or "nothing"


def _reason(error: BaseException) -> str:
    """The part of Ray's message that says what happened."""
    detail = str(error).partition("exit detail:")[2].partition("Some common causes")[0].strip()
    if detail:
        return detail.splitlines()[0][:300].rstrip(".")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "exit" in line.lower() or "died" in line.lower() or "killed" in line.lower()]
    return (telling or lines or [type(error).__name__])[0][:300].rstrip(".")
