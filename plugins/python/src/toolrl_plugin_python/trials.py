"""One test case against a program, in the sandbox.

Nothing that is expected ever comes to where the program runs, so there is nothing that it could find out or forge:

- A whole program gets its input, and what it prints is compared out here.
- A function gets its arguments, and what it returns comes out as data and is compared out here.
- A test program runs behind a wall of its own. When it calls the program's function, the arguments go to the program's
  process and a copy of the result comes back; lines of both go through here.

What the program does to its own process, patch builtins, write to any descriptor, exit, fork, ends in one of these:
another value, or none.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolrl_plugin_python.cases import AssertCase, CallCase, Case, OutputCase
from toolrl_plugin_python.compare import same_output, same_value
from toolrl_plugin_python.conversation import LineProgram, conversation
from toolrl_plugin_python.keeper_process import interpreter
from toolrl_plugin_python.sandbox import Finished, ProgramLimits, Sandbox
from toolrl_plugin_python.trial.values import dumps, encode

Kind = Literal["passed", "wrong", "error", "timeout", "limit", "unfit"]
KINDS: tuple[Kind, ...] = ("passed", "wrong", "error", "timeout", "limit")
CLOCK_TIMES = 3.0
"""Seconds on the clock for each of processor time: others compute on this machine, too."""
CLOCK_EXTRA = 5.0
_SPARE_OUTPUT = 64 << 10
_LONGER = 8
"""How many times as long as the expected result, with the arguments, a result may be: tuples, sets and numbers have
longer forms."""
_FOLDER = Path(__file__).parent / "trial"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a case. `unfit` is a test that can't be run, whatever the program does."""

    kind: Kind
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """What each case may use."""

    seconds: float
    """Of processor time."""
    memory_mb: int
    tolerance: float
    """Of decimal numbers."""


class Trials:
    """Runs cases in one sandbox; `search_path` are folders of packages that programs can import."""

    def __init__(self, sandbox: Sandbox, limits: TrialLimits, search_path: Sequence[str] = ()) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._clock = CLOCK_TIMES * limits.seconds + CLOCK_EXTRA
        self._python = [interpreter(), "-s", "-S", "-P", "-B"]
        self._env = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        if search_path:
            self._env["PYTHONPATH"] = os.pathsep.join(search_path)
        helpers = {f"helpers/{name}.py": (_FOLDER / f"{name}.py").read_bytes() for name in ("values", "modules")}
        self._solver = {**helpers, "helpers/main.py": (_FOLDER / "solver.py").read_bytes()}
        self._tester = {**helpers, "helpers/main.py": (_FOLDER / "tester.py").read_bytes()}

    async def verdict(self, case: Case, source: str) -> Verdict:
        """Run one case. Raises KeeperError where the sandbox fails."""
        if isinstance(case, OutputCase):
            return await self._printed(case, source)
        if isinstance(case, CallCase):
            return await self._called(case, source)
        return await self._asserted(case, source)

    def _program_limits(self, output_bytes: int = _SPARE_OUTPUT) -> ProgramLimits:
        limits = self._limits
        return ProgramLimits(
            wall_seconds=self._clock,
            cpu_seconds=limits.seconds,
            memory_mb=limits.memory_mb,
            processes=16,
            file_mb=32,
            scratch_mb=64,
            output_bytes=output_bytes,
        )

    # A whole program.

    async def _printed(self, case: OutputCase, source: str) -> Verdict:
        limits = self._program_limits(2 * len(case.expected.encode(errors="replace")) + _SPARE_OUTPUT)
        done = await self._sandbox.run(
            [*self._python, "solution.py"],
            files={"solution.py": _bytes(source)},
            stdin=_bytes(case.stdin),
            env=self._env,
            limits=limits,
        )
        ended = _ended_badly(done)
        if ended is not None:
            return ended
        text = done.stdout.decode("utf-8", errors="replace")
        return Verdict("passed" if same_output(text, case.expected, self._limits.tolerance) else "wrong")

    # A function.

    async def _called(self, case: CallCase, source: str) -> Verdict:
        async with self._talk(self._solver) as solver:
            args = [encode(item) for item in case.arguments]
            request = dumps({"call": case.function, "args": args, "kwargs": {}})
            try:
                async with asyncio.timeout(self._clock):
                    loaded = await _ask(solver, dumps({"load": source}))
                    reply = await _ask(solver, request) if loaded is not None and loaded[0] == b"loaded" else loaded
            except TimeoutError:
                return Verdict("timeout")
            if reply is None:
                return _gone(await solver.end())
        kind, raw = reply
        if len(raw) > _SPARE_OUTPUT + _LONGER * (len(request) + len(repr(case.expected))):
            return Verdict("limit", "output")
        said = await asyncio.to_thread(_read, raw)
        if kind != b"value" or "value" not in said:
            return Verdict("error", _raised(said))
        right = any(same_value(said["value"], expected, self._limits.tolerance) for expected in case.expected)
        return Verdict("passed" if right else "wrong")

    # A test program.

    async def _asserted(self, case: AssertCase, source: str) -> Verdict:
        async with AsyncExitStack() as stack:
            solver = await stack.enter_async_context(self._talk(self._solver))
            tester = await stack.enter_async_context(self._talk(self._tester))
            trial = _Trial(solver, tester)
            try:
                async with asyncio.timeout(self._clock):
                    return await trial.run(case, source)
            except TimeoutError:
                return Verdict("timeout")

    def _talk(self, files: dict[str, bytes]) -> Any:
        return conversation(
            self._sandbox,
            [*self._python, "helpers/main.py"],
            files=files,
            env=self._env,
            limits=self._program_limits(),
        )


class _Trial:
    """A test and a program, each in its own process, and the lines between them."""

    def __init__(self, solver: LineProgram, tester: LineProgram) -> None:
        self._solver = solver
        self._tester = tester
        self._gone: Verdict | None = None

    async def run(self, case: AssertCase, source: str) -> Verdict:
        loaded = await _ask(self._solver, dumps({"load": source}))
        if loaded is None:
            return _gone(await self._solver.end())
        if loaded[0] != b"loaded":
            return Verdict("error", _raised(_read(loaded[1][:_SPARE_OUTPUT])))
        said = await _ask(self._tester, b"test " + dumps({"test": case.test, "names": case.names}))
        while said is not None and said[0] == b"call":
            said = await _ask(self._tester, await self._answer(said[1]))
        if said is None:
            # It was ended for a limit, with what the program returned perhaps. It isn't passed in any case.
            return self._gone or _gone(await self._tester.end())
        return self._gone or _verdict(_read(said[1]))

    async def _answer(self, call: bytes) -> bytes:
        """What the program answers to a call, unread; that it has ended, where it has."""
        reply = None if self._gone is not None else await _ask(self._solver, call)
        if reply is not None and reply[0] in (b"value", b"raised"):
            return b" ".join(reply)
        self._gone = self._gone or _gone(await self._solver.end())
        return b"ended " + dumps({"why": self._gone.detail})


def _verdict(said: dict[str, Any]) -> Verdict:
    kinds: dict[Any, Kind] = {"passed": "passed", "failed": "wrong", "error": "error", "unfit": "unfit"}
    return Verdict(kinds.get(said.get("verdict"), "error"), str(said.get("detail", "")))


async def _ask(program: LineProgram, message: bytes) -> tuple[bytes, bytes] | None:
    """Kind and JSON of the answer to this message; None where something else came."""
    nonce = secrets.token_hex(8).encode()
    await program.send(nonce + b" " + message)
    echoed, _, answer = (await program.receive() or b"").partition(b" ")
    kind, _, said = answer.partition(b" ")
    return (kind, said) if echoed == nonce else None


def _read(said: bytes) -> dict[str, Any]:
    """An answer; an empty one where it can't be read."""
    try:
        read = json.loads(said)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _raised(reply: dict[str, Any]) -> str:
    names = reply.get("raised")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else "an exception"
    message = reply.get("message")
    return f"{name}: {message if isinstance(message, str) else ''}"[:300]


def _gone(reason: str) -> Verdict:
    """A process that isn't there any more, and the limit for which."""
    if reason == "cpu":
        return Verdict("timeout", "it used up its processor time")
    if reason:
        return Verdict("limit", f"it went over its limit of {reason}")
    return Verdict("error", "its process ended, or answered nonsense")


def _ended_badly(done: Finished) -> Verdict | None:
    if done.timed_out or done.exceeded == "cpu":
        return Verdict("timeout")
    if done.exceeded or done.output_cut:
        return Verdict("limit", done.exceeded or "output")
    if done.exit_code != 0:
        return Verdict("error", done.stderr[-300:].decode("utf-8", errors="replace"))
    return None


def _bytes(text: str) -> bytes:
    # Half a character, as a tokenizer may give it, is no text that a file can hold.
    return text.encode("utf-8", errors="replace")
