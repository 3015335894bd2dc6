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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from toolrl.errors import ConfigError
from toolrl_plugin_python.interpreter import Interpreter
from toolrl_plugin_python.jail import landlock
from toolrl_plugin_python.jail.settings import LANDLOCK, NAMESPACES, NONE, JobLimits, Settings
from toolrl_plugin_python.keeper_process import KeeperError, KeeperProcess

_SECONDS = 30.0
_PROBE = Path(__file__).parent / "jail" / "probe.py"
HINT = (
    "In a container: allow user namespaces (for Docker `--security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined`), or a kernel with Landlock. Only where the code can be trusted: `isolation: none`, which "
    "protects nothing."
)


class UnfitError(Exception):
    """A way that doesn't work here."""


def detect(isolation: str, settings: Settings, module: str = "") -> tuple[Settings, str]:
    """The settings of the first way that works, and in one line which mechanisms isolate; `module` has to be importable
    inside. Raises ConfigError with the reasons of all ways that don't work."""
    if isolation == NONE:
        return replace(settings, mode=NONE), "none: programs have all the rights of this process"
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"isolation {isolation!r}: programs can be isolated on Linux only, this is {sys.platform}")
    reasons: list[str] = []
    own_user = [replace(settings, mode=LANDLOCK, own_user=True)] if os.geteuid() == 0 else []
    for way in (replace(settings, mode=NAMESPACES), *own_user, replace(settings, mode=LANDLOCK)):
        if isolation in ("auto", way.mode):
            try:
                wrong, groups = look(replace(way, preload=()), module)
                if wrong:
                    raise UnfitError(", ".join(wrong))
            except UnfitError as error:
                name = f"{way.mode} with a user of its own" if way.own_user else way.mode
                reasons.append(f"{name}: {error}")
            else:
                return way, _describe(way, groups, reasons)
    raise ConfigError(["programs can't be isolated on this machine", *reasons], hint=HINT)


def _describe(way: Settings, groups: bool, reasons: Sequence[str]) -> str:
    known = landlock.version()
    if way.mode == NAMESPACES:
        parts = ["namespaces (mounts, processes, network, IPC, host name, cgroup)", "seccomp"]
        parts += [f"Landlock {known}"] if known else []
    else:
        parts = [f"Landlock {known}", "seccomp", "a user of its own" if way.own_user else "a single process"]
    text = ", ".join([*parts, *(["control groups"] if groups else []), "rlimits"])
    return f"{text}; not used: {'; '.join(reasons)}" if reasons else text


def look(way: Settings, module: str) -> tuple[list[str], bool]:
    """What can be done inside and must not be possible, and whether there are control groups. Outside lie a file and a
    process that every program can reach unless walls stand between. Raises UnfitError."""
    with tempfile.TemporaryDirectory(prefix="toolrl-probe-") as folder, ThreadPoolExecutor(1) as thread:
        secret = Path(folder, "secret")
        secret.write_text("secret")
        secret.chmod(0o666)
        Path(folder).chmod(0o777)
        facts = f"{str(secret)!r}, {os.getpid()}, {module!r}, 16, own_numbers={way.mode == NAMESPACES}"
        # The caller's own thread may run an event loop.
        return thread.submit(asyncio.run, _look(way, f"{_PROBE.read_text()}\nlook({facts})")).result()


async def _look(way: Settings, code: str) -> tuple[list[str], bool]:
    keeper = KeeperProcess(way)
    interpreter = Interpreter(keeper, JobLimits(10, 512, 16, 16, 16), 1 << 16)
    try:
        await keeper.start()
        await interpreter.start()
        outcome = await interpreter.execute(code, _SECONDS, last=True)
        await interpreter.close()
    except (OSError, KeeperError) as error:
        raise UnfitError(str(error)) from error
    finally:
        await keeper.stop()
    if outcome.kind != "ok":
        raise UnfitError(f"the probe ended as {outcome.kind}: {outcome.head[-300:].decode(errors='replace')}")
    return json.loads(outcome.head + outcome.tail), keeper.groups
