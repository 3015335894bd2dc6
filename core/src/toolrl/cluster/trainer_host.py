"""A trainer worker's part on its node: it starts the rank's process, listens to it, and ends it.

The rank is a process of its own, as under torchrun: signals reach its main thread, what it prints is its own, and it
can be killed without this one. Two pipes lead to it: orders, whose end tells it that nobody wants it any more, and
events. What it prints is kept in the run's folder, if that can be reached from here, and handed on.

Importing torch takes most of a start, so a spare process that has done that waits for the next one. It is started when
a step is done, so that it takes no time from the first.

Methods are called by Ray, from threads.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from toolrl.cluster.line import KEPT_LOG
from toolrl.cluster.trainer_messages import Beat, Ended, Output, Place, StepDone, TrainerOrder
from toolrl.loop.ranks import TOKEN

EXIT_SECONDS = 15.0
"""For a process to be gone after it has told how it ended."""
DRAIN_SECONDS = 2.0
"""For the last words of a process that is gone; one that it started may hold its output open."""
_RAYS_OWN = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_OVERRIDE_NODE_ID_FOR_TESTING")
"""Variables of this process that would make another one a part of it."""
_CHUNK = 65536


@dataclass
class _Process:
    """A rank's process, or one that waits to become it."""

    process: subprocess.Popen[bytes]
    orders: Connection
    events: Connection
    readers: list[threading.Thread] = field(default_factory=list)
    told: Ended | None = None
    """Its last words."""


class TrainerHost:
    """One trainer worker. `start` may be called again when its process has ended."""

    def __init__(self, module: str, address: str | None = None, *, gpus: int | None = None) -> None:
        """`module` is run as the rank's process; `address` is the node's, found out where it is None; `gpus` is how
        many are lent to this: with 0 the process sees none of the node's."""
        self._module = module
        self._gpus = gpus
        self._address = address
        self._changed = threading.Condition()
        self._now: _Process | None = None
        self._spare: _Process | None = None
        self._output = Output()
        self._heard = 0.0
        self._log: IO[bytes] | None = None
        self._log_path: Path | None = None
        self._lines: deque[bytes] = deque(maxlen=KEPT_LOG)
        self._killing = False
        self._header = b""
        """Of the log, as soon as there is a folder for it."""

    def place(self) -> Place:
        """Where this is, and a port that is free now."""
        address = self._address or _node_address()
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
            return Place(platform.node(), address, int(probe.getsockname()[1]))

    def start(self, order: TrainerOrder) -> int:
        """Begin a rank's process with this order: its number."""
        with self._changed:
            child, self._spare = self._spare, None
        if child is None or child.process.poll() is not None:
            child = self._spawn()
        address = self._address or _node_address()
        with self._changed:
            self._now, self._output, self._killing = child, Output(pid=child.process.pid), False
            self._heard = time.monotonic()
            self._lines.clear()
            self._log_path = order.log_path
            self._header = f"trainer worker {order.rank} starts: {_named(child)}\n".encode()
            self._changed.notify_all()
        for stream, name in ((child.process.stdout, "out"), (child.process.stderr, "err")):
            assert stream is not None
            self._thread(child, self._read, child, stream, name)
        self._thread(child, self._listen, child)
        threading.Thread(target=self._wait, args=(child,), daemon=True).start()
        with suppress(OSError):  # It is gone: the host says so.
            child.orders.send((order, _environment(order, address)))
        return child.process.pid

    def poll(self, pid: int, seconds: float, silence: float) -> Output:
        """What has happened to the process of this number since this was last asked, as soon as there is something; at
        the latest after so long. A process that says nothing for `silence` seconds is taken for dead. Nothing, where
        the process isn't the one of now: whoever asks has given it up, and the next one's news are for others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_of(pid) or self._has_news(), seconds)
            if not self._is_of(pid):
                return Output(pid=pid)
            found = self._output
            self._output = Output(doing=found.doing, pid=found.pid)
            quiet = time.monotonic() - self._heard
        if found.ended is None and quiet >= silence:
            found.ended = Ended(death=f"said nothing for {quiet:.0f} seconds")
        return found

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        child = self._now
        if child is not None and child.process.poll() is None:
            child.process.send_signal(number)

    def last_lines(self) -> list[str]:
        """The end of what the process printed."""
        with self._changed:
            return [line.decode(errors="replace") for line in self._lines]

    def end(self) -> None:
        """End the process at once, and whatever it started; returns when it is gone. A spare one stays."""
        child = self._now
        if child is not None:
            self._killing = True
            _end(child)
            child.process.wait()

    def stop(self) -> None:
        """End all."""
        self.end()
        with self._changed:
            spare, self._spare = self._spare, None
        if spare is not None:
            _end(spare)
            spare.process.wait()

    # Threads.

    def _spawn(self) -> _Process:
        orders_out, orders_in = os.pipe()
        events_out, events_in = os.pipe()
        environment = {name: value for name, value in os.environ.items() if name not in _RAYS_OWN}
        if self._gpus == 0:
            # Ray names the devices that it lends, and hides none where it lends none.
            environment["CUDA_VISIBLE_DEVICES"] = ""
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(orders_out), str(events_in)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(orders_out, events_in),
                env=environment,
                # Ctrl-C in a terminal reaches the command alone, which passes it on.
                start_new_session=True,
            )
        finally:
            os.close(orders_out)
            os.close(events_in)
        return _Process(process, Connection(orders_in, readable=False), Connection(events_out, writable=False))

    def _thread(self, child: _Process, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        child.readers.append(thread)
        thread.start()

    def _read(self, child: _Process, stream: IO[bytes], name: str) -> None:
        """Hand on what the process prints."""
        rest = b""
        while data := os.read(stream.fileno(), _CHUNK):
            with self._changed:
                if child is not self._now:
                    break
                self._write(data)
                *lines, rest = (rest[-_CHUNK:] + data).split(b"\n")  # a progress bar ends no line
                self._lines.extend(line for line in lines if line.strip())
                setattr(self._output, name, getattr(self._output, name) + data)
                self._changed.notify_all()
        if rest.strip():
            self._lines.append(rest)
        stream.close()

    def _write(self, data: bytes) -> None:
        """Into the log, where the run's folder is here."""
        path = self._log_path
        if self._log is not None and Path(self._log.name) != path:
            self._log.close()
            self._log = None
        with suppress(OSError):
            if self._log is None and path is not None and path.parent.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                self._log = path.open("ab", buffering=0)
            if self._log is not None:
                self._log.write(self._header + data)
                self._header = b""

    def _listen(self, child: _Process) -> None:
        """Take in what the process tells."""
        while True:
            try:
                event = child.events.recv()
            except (EOFError, OSError):
                return
            with self._changed:
                if child is not self._now:
                    return
                self._heard = time.monotonic()
                if isinstance(event, Beat):
                    self._output.doing = event.doing
                    continue
                if isinstance(event, Ended):
                    self._last_words_of(child, event)
                    continue
                self._write(b"")
                self._output.events.append(event)
                wants_spare = isinstance(event, StepDone) and self._spare is None
                self._changed.notify_all()
            if wants_spare:
                with suppress(OSError):
                    self._spare = self._spawn()

    def _last_words_of(self, child: _Process, event: Ended) -> None:
        child.told = event
        if event.said:
            self._write(event.said.encode())
            self._lines.extend(line.encode() for line in event.said.splitlines() if line.strip())
        late = threading.Timer(EXIT_SECONDS, _end, [child])
        late.daemon = True
        late.start()

    def _wait(self, child: _Process) -> None:
        """See how the process ends."""
        code = child.process.wait()
        _kill(child)  # What it started and left.
        end = time.monotonic() + DRAIN_SECONDS
        for thread in child.readers:
            thread.join(max(0.0, end - time.monotonic()))
        child.orders.close()
        with self._changed:
            if child is self._now and not self._killing:
                self._output.ended = child.told or Ended(death=_death(code))
            self._changed.notify_all()

    def _is_of(self, pid: int) -> bool:
        return self._now is not None and self._now.process.pid == pid

    def _has_news(self) -> bool:
        it = self._output
        return bool(it.out or it.err or it.events or it.ended)


def _kill(child: _Process) -> None:
    """It and its process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, signal.SIGKILL)


def _end(child: _Process) -> None:
    """It and its process group, if it is there: the number of one that is gone may be another's by now."""
    if child.process.poll() is None:
        _kill(child)


def _named(child: _Process) -> str:
    return f"process {child.process.pid} on {platform.node()}"


def _death(code: int) -> str:
    if code >= 0:
        return f"ended with status {code} and no reason"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _environment(order: TrainerOrder, address: str) -> dict[str, str]:
    """By which the ranks find each other, as torchrun gives it."""
    found = {
        "RANK": str(order.rank),
        "WORLD_SIZE": str(order.size),
        "LOCAL_RANK": "0",  # Ray shows each worker its own devices only.
        "MASTER_ADDR": order.address,
        "MASTER_PORT": str(order.port),
        TOKEN: order.token,
    }
    interface = _interface_of(address)
    if interface is not None and "GLOO_SOCKET_IFNAME" not in os.environ:
        # Gloo takes that of the host's name, which need not be one that the others reach.
        found["GLOO_SOCKET_IFNAME"] = interface
    if order.loaded.config.cluster.address is not None:
        found["RAY_ADDRESS"] = order.loaded.config.cluster.address
    return found


def _interface_of(address: str) -> str | None:
    """The name of the network interface with this IPv4 address; None where it can't be found out."""
    try:
        import fcntl
    except ImportError:
        return None
    ask_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), ask_address, name.encode()[:15].ljust(256, b"\0"))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def _node_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
