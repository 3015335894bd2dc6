"""A trainer worker's actor: it starts its rank's process, hands on what that prints, and ends it.

The process is none of Ray's: signals reach its main thread, and it can be killed without the actor.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import platform
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from toolrl_plugin_ray.connection import own_address
from toolrl_plugin_ray.messages import RankEnd, RankOrder

KEPT_BYTES = 4096
"""Of what the process printed last, for a message."""
FLUSH_SECONDS = 1.0
SIOCGIFADDR = 0x8915
"""Linux's request for an interface's address."""
_RAYS_OWN = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_OVERRIDE_NODE_ID_FOR_TESTING")
"""Variables that would make the process a part of this actor."""


class RankHost:
    """The actor of one rank. Its methods run in threads."""

    def __init__(self, gpus: int) -> None:
        """`gpus` is how many Ray lends it; with 0 the process sees none of the node's."""
        self._gpus = gpus
        self._process: subprocess.Popen[bytes] | None = None
        self._unwritten = self._tail = b""

    def run(self, order: RankOrder, log: Path, *, forward: bool) -> Iterator[tuple[bytes, bool] | RankEnd]:
        """Run the rank's process to its end. Yields what it prints and whether that is an error, where `forward` asks
        for it, and last how it ended. All is written to `log` as soon as the run's folder is there."""
        interface = {} if "GLOO_SOCKET_IFNAME" in os.environ else _interface_of(own_address())
        order = replace(order, environment={**order.environment, **interface})
        environment = {name: value for name, value in os.environ.items() if name not in _RAYS_OWN}
        if not self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ""  # Where Ray lends no GPU it hides none.
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "toolrl_plugin_ray.rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal reaches the command alone, which passes it on.
        )
        assert process.stdin is not None
        self._unwritten = f"trainer worker {order.rank} starts: process {process.pid} on {platform.node()}\n".encode()
        with suppress(BrokenPipeError):
            process.stdin.write(pickle.dumps(order))
            process.stdin.flush()
        # What the process leaves behind would hold its output open.
        threading.Thread(target=self._end_after, args=(process,), daemon=True).start()
        for printed in self._read(process, log):
            if forward:
                yield printed
        yield RankEnd(process.wait(), self._tail.decode(errors="replace"))

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def end(self) -> None:
        """Kill the process and what it started; returns when it is gone."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _end_after(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self.end()

    def _read(self, process: subprocess.Popen[bytes], log: Path) -> Iterator[tuple[bytes, bool]]:
        with selectors.DefaultSelector() as selector:
            for stream, is_error in ((process.stdout, False), (process.stderr, True)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, is_error)
            while selector.get_map():
                for key, _ in selector.select(FLUSH_SECONDS):
                    data = os.read(key.fd, 65536)
                    if data:
                        self._unwritten += data
                        self._tail = (self._tail + data)[-KEPT_BYTES:]
                        yield data, key.data
                    else:
                        selector.unregister(key.fileobj)
                self._write(log)

    def _write(self, log: Path) -> None:
        if self._unwritten and log.parent.parent.is_dir():
            with suppress(OSError):
                log.parent.mkdir(exist_ok=True)
                with log.open("ab") as file:
                    file.write(self._unwritten)
                self._unwritten = b""


def _interface_of(address: str) -> dict[str, str]:
    """Has gloo listen on the interface with this IPv4 address: its own choice is that of the host's name, which other
    hosts may not reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # It has no such address.
                answer = fcntl.ioctl(probe, SIOCGIFADDR, name.encode().ljust(256, b"\0"))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return {"GLOO_SOCKET_IFNAME": name}
    return {}
