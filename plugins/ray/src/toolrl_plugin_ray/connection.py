"""This process's connection to a Ray cluster: one that runs already, or one that is started for the run."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from toolrl.config.cluster import ClusterConfig
from toolrl.errors import ConfigError, first_line
from toolrl.tools.cancellation import uninterrupted

NAMESPACE = "toolrl"
STORE_BYTES = 200 * 2**20
"""Object store of a cluster that is started for the run: it holds episodes on their way."""
CONNECT_SECONDS, WARNING_SECONDS = 10.0, 30.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def connected(config: ClusterConfig, check: Callable[[], None]) -> AsyncIterator[None]:
    """While this is entered the process belongs to the cluster that the config names, or to one that is started for it.
    `check` is called as soon as it does. Raises ConfigError."""
    joined = False

    def join() -> None:
        nonlocal joined
        if not ray.is_initialized():
            _join(config)
            joined = True
        check()

    try:
        described = _described(config)
        waits = asyncio.get_running_loop().call_later(WARNING_SECONDS, _log.warning, "waiting for %s", described)
        try:
            # In a thread: in the main one Ray would install signal handlers that end the process without saving
            # anything.
            await uninterrupted(asyncio.to_thread(join))
        finally:
            waits.cancel()
            _restore_signals()
        yield
    finally:
        if joined:
            ray.shutdown()


def join_running_cluster() -> bool:
    """Make this process part of the Ray cluster that runs here, for cluster-wide limits; False where it is already.
    Raises ConfigError where none does."""
    if ray.is_initialized():
        return False
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    try:
        ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"policy.limit_scope: `cluster` needs a Ray cluster, and none can be joined: {first_line(error)}",
            hint="Start one by `ray start --head`, or name one's address in RAY_ADDRESS; for one process alone "
            "`limit_scope: local` does.",
        ) from error
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
    return True


def own_address() -> str:
    """This machine's address as the cluster knows it."""
    return str(ray.util.get_node_ip_address())


def death_reason(error: BaseException) -> str:
    """Why an actor died, from Ray's message."""
    detail = str(error).partition("exit detail:")[2].strip().partition("\n")[0]
    return (detail or first_line(error))[:300].rstrip(".")


def _join(config: ClusterConfig) -> None:
    address = config.address or os.environ.get("RAY_ADDRESS")
    local = {"address": "local", "include_dashboard": False, "object_store_memory": STORE_BYTES}
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            _check_listens(address)
        ray.init(**options, **({"address": address} if address else local))
    except (ConnectionError, TimeoutError, ValueError, RuntimeError, OSError, RayError) as error:
        raise ConfigError(
            f"cluster.address: {_described(config)} can't be {'joined' if address else 'started'}: {first_line(error)}",
            hint="`ray status --address ADDRESS` shows its state. Driver and nodes need the same versions of "
            "Python and Ray. Leave cluster.address out to start a cluster on this machine for the run.",
        ) from error


def _restore_signals() -> None:
    """Ray's own handler, below Python's, prints a trace for SIGTERM before it passes the signal on."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
            signal.siginterrupt(signal.SIGTERM, False)


def _check_listens(address: str) -> None:
    """Raises OSError where nothing listens: Ray would retry for many minutes without a word."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


def _described(config: ClusterConfig) -> str:
    address = config.address or os.environ.get("RAY_ADDRESS")
    return f"the Ray cluster {address!r}" if address else "a Ray cluster on this machine"
