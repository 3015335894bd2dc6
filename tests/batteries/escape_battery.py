"""The escape battery: attacks on the tool `python`, each of which is first shown to be a real one.

    python tests/batteries/escape_battery.py                  # prints a table
    python tests/batteries/escape_battery.py --json
    python tests/batteries/escape_battery.py --isolation landlock
    python tests/batteries/escape_battery.py --only network --only read_a_file
    python tests/batteries/escape_battery.py --isolation landlock --as container

Each attack runs twice. Under `isolation: none`, with wide limits and in a process that is thrown away, it has to
succeed: what can't is no attack. Under the isolation that is examined it must not, nothing outside may have changed,
and the next call has to work. Both runs have a world of their own to attack: files, servers, a process.

`--as container` runs it as root with what Docker leaves to it: few capabilities, control groups that can't be written,
no mounts. `--as user` runs it as an ordinary user.

The exit status is 0 where no attack succeeds and every next call works, 1 where not, and 2 where nothing could be
examined, because code can't be isolated here: the tool refuses to start then, and the reasons are printed. Where the
machine itself stops an attack (the filter of a container, an old kernel, a single processor), that attack is listed as
not real here, with the error that stopped it; it proves nothing about the tool.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from escapes import exhaustion, files, network, processes, raw, resources  # noqa: F401 - they fill ATTACKS
from escapes.attack import ATTACKS, CLASSES, PAUSE_SECONDS, Attack
from escapes.world import World

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession
from toolrl.types import Task, ToolCall, ToolResult
from toolrl_plugin_python import detection
from toolrl_plugin_python.jail import system
from toolrl_plugin_python.options import PythonOptions
from toolrl_plugin_python.tool import PythonToolset, build_python, settings_of

OUTPUT_KB = 64
TIMEOUT = 4.0
AT_ONCE = 3
"""Attacks that end by a limit run so many at a time."""
LINGER_SECONDS = 0.3
LOOKS = 100
"""So often a process that outlives its call is looked for where it has to be found."""
_DOCKER_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
_SOME_USER = 23456


@dataclass
class Result:
    """What came of one attack."""

    name: str
    kind: str
    stopped_by: str
    succeeded: bool
    damage: list[str]
    """What was touched outside."""
    next_call_works: bool
    said: str
    """The last line of what the call answered: mostly the error that stopped it."""
    seconds: float
    is_real: bool | None = None
    """It succeeds without isolation; None where that wasn't tried."""
    said_without: str = ""
    """The last line of what the call answered without isolation, where it isn't real."""


def options(isolation: str, world: World, persistent: bool) -> PythonOptions:
    """Narrow limits where isolation is examined, wide ones where attacks are to succeed."""
    if isolation == "none":
        limits: dict[str, Any] = {"timeout": 120, "output_kb": 65536, "pool_size": 1}
    else:
        limits = {
            "timeout": TIMEOUT, "cpu_seconds": 1, "memory_mb": 128, "processes": 32, "file_mb": 8, "scratch_mb": 16,
            "output_kb": OUTPUT_KB, "pool_size": 2, "readable": [world.folder / "readable"],
        }  # fmt: skip
    return PythonOptions(isolation=isolation, persistent=persistent, concurrency=AT_ONCE, **limits)


class Battery:
    """Runs attacks against one world and two tool objects: with a fresh interpreter a call, and with one an episode."""

    def __init__(self, fresh: PythonToolset, persistent: PythonToolset, world: World, isolation: str) -> None:
        self._fresh = fresh
        self._persistent = persistent
        self._world = world
        self._is_open = isolation == "none"

    async def run(self, attacks: Sequence[Attack]) -> list[Result]:
        """All of them, in order; those that take long several at a time, after the others."""
        results = [await self._examine(attack) for attack in attacks if not attack.long]
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(attack: Attack) -> Result:
            async with slots:
                return await self._examine(attack)

        return results + await asyncio.gather(*(one(attack) for attack in attacks if attack.long))

    async def _examine(self, attack: Attack) -> Result:
        begin = time.monotonic()
        context = EpisodeContext("escape#0", Task("escape", ()), random.Random(0))
        toolset = self._persistent if attack.persistent else self._fresh
        async with toolset.open(context.task, context) as session:
            result = await self._call(session, self._world.filled(attack.code, attack.bound * self._is_open))
            if attack.persistent:
                await asyncio.sleep(PAUSE_SECONDS)
            if attack.follow_up:
                result = await self._call(session, self._world.filled(attack.follow_up, 0))
            succeeded = self._world.has_won(result.text) or (attack.output and len(result.text) > 2 * OUTPUT_KB << 10)
            if attack.lingers:
                succeeded = await self._lingers() or succeeded
            damage = await self._world.damage()
            following = await self._call(session, "6 * 7")
        lines = [line for line in result.text[-2000:].splitlines() if line.strip()]
        return Result(
            name=attack.name,
            kind=attack.kind,
            stopped_by=attack.stopped_by,
            succeeded=succeeded or bool(damage),
            damage=damage,
            next_call_works=following.text == "42",
            said=lines[-1][:160] if lines else "",
            seconds=round(time.monotonic() - begin, 3),
        )

    async def _lingers(self) -> bool:
        """True where a marked process is there when all should be over."""
        await asyncio.sleep(LINGER_SECONDS)
        # One that hops from number to number may be missed; where nothing holds it, it is there for some seconds.
        for _ in range(LOOKS if self._is_open else 1):
            if found := any(self._world.lingering() for _ in range(20)):
                break
            await asyncio.sleep(0.05)
        self._world.end_lingering()
        return found

    async def _call(self, session: ToolSession, code: str) -> ToolResult:
        return await session.call(ToolCall("python", {"code": code}))


async def run_attacks(isolation: str, attacks: Sequence[Attack]) -> list[Result]:
    """Run them in this process."""
    world = World()
    try:
        await world.start()
        fresh, persistent = (
            build_python(options(isolation, world, kind), BuildContext(name="python")) for kind in (False, True)
        )
        try:
            await fresh.start()
            await persistent.start()
            return await Battery(fresh, persistent, world, isolation).run(attacks)
        finally:
            await persistent.stop()
            await fresh.stop()
    finally:
        world.close()


def begin_anew(identity: str, arguments: Sequence[str]) -> None:
    """This program as `container` or `user`; only root can."""
    if identity == "container":
        system.unshare(system.CLONE_NEWNS)
        system.mount(None, "/", None, system.MS_REC | system.MS_PRIVATE)
        system.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", system.MS_RDONLY)
        for capability in set(range(64)) - _DOCKER_CAPABILITIES:
            with suppress(OSError):
                system.prctl(system.PR_CAPBSET_DROP, capability)
    else:
        os.setgroups([])
        os.setresgid(_SOME_USER, _SOME_USER, _SOME_USER)
        os.setresuid(_SOME_USER, _SOME_USER, _SOME_USER)
    os.execv(sys.executable, [sys.executable, __file__, *arguments])


def way(isolation: str) -> str:
    """What isolates, in words. Raises ConfigError where nothing does."""
    return detection.detect(isolation, settings_of(PythonOptions()))[1]


def prove(attacks: Sequence[Attack]) -> subprocess.Popen[str]:
    """A process that runs the attacks without isolation; it prints a JSON list."""
    command = [sys.executable, __file__, "--prove", *(f"--only={attack.name}" for attack in attacks)]
    # What only the environment of a parent holds.
    environment = {**os.environ, "TOOLRL_ESCAPE": "secret"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def examine(isolation: str, attacks: Sequence[Attack], *, proven: bool = False) -> list[Result]:
    """Results under this isolation, each with whether the attack is real, unless that was `proven` elsewhere. Raises
    ConfigError where code can't be isolated."""
    if proven:
        return asyncio.run(run_attacks(isolation, attacks))
    proof = prove(attacks)
    try:
        results = asyncio.run(run_attacks(isolation, attacks))
        printed, _ = proof.communicate(timeout=300)
    finally:
        with suppress(ProcessLookupError):
            proof.kill()
        proof.wait()
    if proof.returncode:
        raise RuntimeError(f"the process that proves attacks to be real ended with status {proof.returncode}")
    proven = {it["name"]: it for it in json.loads(printed)}
    for result in results:
        result.is_real = proven[result.name]["succeeded"]
        result.said_without = "" if result.is_real else proven[result.name]["said"] or "it printed nothing"
    return results


def report(results: Sequence[Result], isolation: str, way: str = "") -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "isolation": isolation,
        "way": way,
        "attacks": len(results),
        "succeeded": sum(result.succeeded for result in results),
        "not_real": [result.name for result in results if result.is_real is False],
        "next_call_failed": [result.name for result in results if not result.next_call_works],
        "results": [asdict(result) for result in results],
    }


def chosen(only: Sequence[str]) -> list[Attack]:
    """The attacks of these names or classes; all where there are none."""
    known = {attack.name for attack in ATTACKS} | set(CLASSES)
    unknown = sorted(set(only) - known)
    if unknown:
        raise SystemExit(f"no attack or class is named {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    return [attack for attack in ATTACKS if not only or attack.name in only or attack.kind in only]


def listing(found: dict[str, Any]) -> str:
    """A report as lines to read."""
    lines = []
    for it in found["results"]:
        verdict = "SUCCEEDED" if it["succeeded"] else "stopped"
        verdict += "" if it["next_call_works"] else ", NEXT CALL FAILED"
        lines.append(f"{it['kind']:22} {it['name']:42} {verdict:10} {it['said'][:90]}")
        if it["is_real"] is False:
            lines.append(f"{'':22} not real here, without isolation: {it['said_without'][:90]}")
    return "\n".join([*lines, "", found["way"], f"{found['attacks']} attacks, {found['succeeded']} succeeded"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--isolation", default="auto", choices=("auto", "namespaces", "landlock"))
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="an attack or a class")
    parser.add_argument("--as", dest="identity", choices=("container", "user"), help="with fewer rights than root's")
    parser.add_argument("--proven", action="store_true", help="don't run the attacks without isolation as well")
    parser.add_argument("--prove", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    attacks = chosen(arguments.only)
    if arguments.identity:
        begin_anew(arguments.identity, [it for it in sys.argv[1:] if it not in ("--as", arguments.identity)])
    if arguments.prove:
        print(json.dumps([asdict(result) for result in asyncio.run(run_attacks("none", attacks))]))
        return 0
    try:
        found_way = way(arguments.isolation)
        results = examine(arguments.isolation, attacks, proven=arguments.proven)
    except ConfigError as error:
        if arguments.json:
            print(json.dumps({**report([], arguments.isolation), "error": str(error)}))
        print(f"Nothing was examined: {error}", file=sys.stderr)
        return 2
    found = report(results, arguments.isolation, found_way)
    print(json.dumps(found, indent=2) if arguments.json else listing(found))
    return 1 if found["succeeded"] or found["next_call_failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
