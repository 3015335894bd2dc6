"""Finding out how programs can be isolated on this machine, by trying.

Strongest first: namespaces; Landlock with a user of its own, for root where namespaces are forbidden; Landlock with a
single process, for other users. Each way is set up for real, and from inside it is tried to do what must not be
possible.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from toolrl.errors import ConfigError
from toolrl_plugin_python.jail import landlock
from toolrl_plugin_python.jail.settings import LANDLOCK, NAMESPACES, NONE, JobLimits, Settings
from toolrl_plugin_python.keeper_process import KeeperError, KeeperProcess

_SECONDS = 30.0
HINT = (
    "In a container: allow user namespaces (for Docker `--security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined`), or a kernel with Landlock. Only where the code can be trusted: `isolation: none`, which "
    "protects nothing."
)


@dataclass(frozen=True, slots=True)
class DetectedIsolation:
    """What was found to work."""

    text: str
    """Which mechanisms isolate, in one line."""
    processes: bool
    """A program may start others."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What a probe saw from inside."""

    wrong: tuple[str, ...] = ()
    """What could be done and must not be possible."""
    processes: bool = False
    """A program may start others."""
    own_users: bool = False
    """It is in a user namespace of its own."""
    groups: bool = False
    """It has control groups of its own."""


class UnfitError(Exception):
    """A way that doesn't work here."""


def detect(isolation: str, settings: Settings, module: str = "") -> tuple[Settings, DetectedIsolation]:
    """The settings of the first way that works; `module` is one that has to be importable inside. Raises ConfigError
    with the reasons of all that don't."""
    if isolation == NONE:
        return replace(settings, mode=NONE), DetectedIsolation(
            "none: programs have all the rights of this process", True
        )
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"isolation {isolation!r}: programs can be isolated on Linux only, this is {sys.platform}")
    reasons: list[str] = []
    for way in _ways(settings):
        if isolation in ("auto", way.mode):
            try:
                inside = probe(way, module)
            except UnfitError as error:
                reasons.append(f"{_name(way)}: {error}")
            else:
                return way, DetectedIsolation(_describe(way, inside, reasons), inside.processes)
    raise ConfigError(["programs can't be isolated on this machine", *reasons], hint=HINT)


def _ways(settings: Settings) -> Iterator[Settings]:
    yield replace(settings, mode=NAMESPACES)
    if os.geteuid() == 0:
        yield replace(settings, mode=LANDLOCK, own_user=True)
    yield replace(settings, mode=LANDLOCK)


def _name(way: Settings) -> str:
    return f"{way.mode} with a user of its own" if way.own_user else way.mode


def _describe(way: Settings, inside: Inside, reasons: Sequence[str]) -> str:
    known = landlock.version()
    if way.mode == NAMESPACES:
        kinds = "mounts, processes, network, IPC, host name, cgroup" + (", user" if inside.own_users else "")
        parts = [f"namespaces ({kinds})", "seccomp", *([f"Landlock {known}"] if known else [])]
    else:
        parts = [f"Landlock {known}", "seccomp", *(["a user of its own"] if way.own_user else [])]
    parts += ["control groups"] if inside.groups else []
    parts += [] if inside.processes else ["a single process"]
    text = f"{', '.join(parts)}, rlimits"
    return f"{text}; not used: {'; '.join(reasons)}" if reasons else text


def probe(way: Settings, module: str) -> Inside:
    """Set up one way and try it from inside. Raises UnfitError."""
    with reachable() as reached:
        inside = ask(replace(way, preload=()), {**reached, "module": module})
    if inside.wrong:
        raise UnfitError(", ".join(inside.wrong))
    return inside


@contextmanager
def reachable() -> Iterator[dict[str, str]]:
    """A file and a process that every program can reach unless walls stand between."""
    with tempfile.TemporaryDirectory(prefix="toolrl-probe-") as folder:
        Path(folder).chmod(0o777)
        secret = Path(folder, "secret")
        secret.write_text("secret")
        secret.chmod(0o666)
        yield {"secret": str(secret), "victim": str(os.getpid())}


def ask(way: Settings, reached: dict[str, str]) -> Inside:
    """What a probe saw. Raises UnfitError."""
    with ThreadPoolExecutor(1) as thread:  # the caller's own may run an event loop
        return thread.submit(asyncio.run, _ask(way, reached)).result()


async def _ask(way: Settings, reached: dict[str, str]) -> Inside:
    keeper = KeeperProcess(way)
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    handle = os.memfd_create("job", os.MFD_CLOEXEC)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.write(handle, json.dumps(reached).encode())
        async with asyncio.timeout(_SECONDS):
            await keeper.start()
            limits = JobLimits(10, 512, 16, 16, 16)
            ending = await keeper.begin("probe", limits, [nothing, nothing, nothing, theirs, handle]).ended
        os.set_blocking(ours, False)
        with suppress(BlockingIOError):
            return Inside(groups=keeper.groups, **json.loads(os.read(ours, 1 << 16)))
        raise UnfitError(ending.error or "the walls couldn't be put up")
    except TimeoutError:
        raise UnfitError(f"the keeper didn't answer within {_SECONDS:g} s") from None
    except (OSError, KeeperError) as error:
        raise UnfitError(str(error)) from error
    finally:
        for number in (ours, theirs, handle, nothing):
            os.close(number)
        await keeper.stop()
