"""One test case against a program, in the sandbox.

Nothing that is expected ever comes to where the program runs, so there is nothing that it could find out or forge:

- A whole program gets its input, and what it prints is compared out here.
- A function gets its arguments, and what it returns comes out as data and is compared out here.
- A test program runs behind a wall of its own. When it calls the program's function, the arguments go to the program's
  process and a copy of the result comes back; lines of both go through here.

Output is compared line by line and word by word: how words of a line are separated, blanks at a line's end and empty
lines at the end of all don't matter. Two words are the same where their letters are; where the expected one is a number
with a point or an exponent, a number within the tolerance is right as well. Whole numbers have to be exact.

What the program does to its own process, patch builtins, write to any descriptor, exit, fork, ends in one of these:
another value, or none.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from toolrl_plugin_python import trial_child
from toolrl_plugin_python.cases import AssertCase, CallCase, Case, OutputCase
from toolrl_plugin_python.keeper_process import interpreter
from toolrl_plugin_python.sandbox import LineProgram, ProgramLimits, Sandbox, conversation
from toolrl_plugin_python.trial_child import dumps, encode

Kind = Literal["passed", "wrong", "error", "timeout", "limit", "unfit"]
KINDS: tuple[Kind, ...] = ("passed", "wrong", "error", "timeout", "limit")
CLOCK_TIMES = 3.0
"""Seconds on the clock for each of processor time: others compute on this machine, too."""
CLOCK_EXTRA = 5.0
_SPARE_OUTPUT = 64 << 10
_LONGER = 8
"""How many times as long as the expected result, with the arguments, a result may be: tuples, sets and numbers have
longer forms."""
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d{1,4})?")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?")
_LONGEST_NUMBER = 400


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a case. `unfit` is a test that can't be run, whatever the program does."""

    kind: Kind
    detail: str = ""


class Trials:
    """Runs cases in one sandbox; `search_path` are folders of packages that programs can import."""

    def __init__(
        self, sandbox: Sandbox, *, seconds: float, memory_mb: int, tolerance: float, search_path: Sequence[str] = ()
    ) -> None:
        """Each case may use so many `seconds` of processor time. `tolerance` is that of decimal numbers."""
        self.sandbox = sandbox
        self._tolerance = tolerance
        self._limits = ProgramLimits(
            wall_seconds=CLOCK_TIMES * seconds + CLOCK_EXTRA,
            cpu_seconds=seconds,
            memory_mb=memory_mb,
            processes=16,
            file_mb=32,
            scratch_mb=64,
            output_bytes=_SPARE_OUTPUT,
        )
        self._python = [interpreter(), "-s", "-S", "-P", "-B"]
        self._env = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        if search_path:
            self._env["PYTHONPATH"] = os.pathsep.join(search_path)

    async def verdict(self, case: Case, source: str) -> Verdict:
        """Run one case. Raises KeeperError where the sandbox fails."""
        if isinstance(case, OutputCase):
            return await self._printed(case, source)
        return await self._called(case, source)

    # A whole program.

    async def _printed(self, case: OutputCase, source: str) -> Verdict:
        output_bytes = 2 * len(case.expected.encode(errors="replace")) + _SPARE_OUTPUT
        done = await self.sandbox.run(
            [*self._python, "solution.py"],
            files={"solution.py": _bytes(source)},
            stdin=_bytes(case.stdin),
            env=self._env,
            limits=replace(self._limits, output_bytes=output_bytes),
        )
        if done.timed_out:
            return Verdict("timeout")
        if done.exceeded or done.output_cut:
            return _gone(done.exceeded or "output")
        if done.exit_code != 0:
            return Verdict("error", done.stderr[-300:].decode("utf-8", errors="replace"))
        text = done.stdout.decode("utf-8", errors="replace")
        return Verdict("passed" if same_output(text, case.expected, self._tolerance) else "wrong")

    # A function, called from here or by a test program.

    async def _called(self, case: CallCase | AssertCase, source: str) -> Verdict:
        async with AsyncExitStack() as stack:
            solver = await stack.enter_async_context(self._talk("program"))
            tester = None
            if isinstance(case, AssertCase):
                tester = await stack.enter_async_context(self._talk("test"))
            try:
                async with asyncio.timeout(self._limits.wall_seconds):
                    loaded = await _ask(solver, dumps({"load": source}))
                    if loaded is None:
                        return _gone(await solver.end())
                    if loaded[0] != b"loaded":
                        return Verdict("error", _raised(_read(loaded[1][:_SPARE_OUTPUT])))
                    if isinstance(case, AssertCase):
                        assert tester is not None
                        return await _tested(case, solver, tester)
                    return await self._compared(case, solver)
            except TimeoutError:
                return Verdict("timeout")

    async def _compared(self, case: CallCase, solver: LineProgram) -> Verdict:
        args = [encode(item) for item in case.arguments]
        request = dumps({"call": case.function, "args": args, "kwargs": {}})
        reply = await _ask(solver, request)
        if reply is None:
            return _gone(await solver.end())
        kind, raw = reply
        if len(raw) > _SPARE_OUTPUT + _LONGER * (len(request) + len(repr(case.expected))):
            return Verdict("limit", "output")
        said = await asyncio.to_thread(_read, raw)
        if kind != b"value" or "value" not in said:
            return Verdict("error", _raised(said))
        right = any(same_value(said["value"], expected, self._tolerance) for expected in case.expected)
        return Verdict("passed" if right else "wrong")

    def _talk(self, role: str) -> AbstractAsyncContextManager[LineProgram]:
        return conversation(
            self.sandbox,
            [*self._python, "helpers/main.py", role],
            files={"helpers/main.py": Path(trial_child.__file__).read_bytes()},
            env=self._env,
            limits=self._limits,
        )


async def _tested(case: AssertCase, solver: LineProgram, tester: LineProgram) -> Verdict:
    """A test and a program, each in its own process, and the lines between them. An answer of the program goes to the
    test unread."""
    gone: Verdict | None = None
    said = await _ask(tester, b"test " + dumps({"test": case.test, "names": case.names}))
    while said is not None and said[0] == b"call":
        reply = None if gone else await _ask(solver, said[1])
        if reply is None or reply[0] not in (b"value", b"raised"):
            gone = gone or _gone(await solver.end())
            reply = b"ended", dumps({"why": gone.detail})
        said = await _ask(tester, b" ".join(reply))
    if said is None:
        # It was ended for a limit, with what the program returned perhaps. It isn't passed in any case.
        return gone or _gone(await tester.end())
    verdict = _read(said[1])
    kinds: dict[Any, Kind] = {"passed": "passed", "failed": "wrong", "error": "error", "unfit": "unfit"}
    return gone or Verdict(kinds.get(str(verdict.get("verdict")), "error"), str(verdict.get("detail", "")))


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


def _bytes(text: str) -> bytes:
    # Half a character, as a tokenizer may give it, is no text that a file can hold.
    return text.encode("utf-8", errors="replace")


def same_output(given: str, expected: str, tolerance: float) -> bool:
    """Whether a program's output is right."""
    lines, wanted = _lines(given), _lines(expected)
    return len(lines) == len(wanted) and all(
        _same_line(line, want, tolerance) for line, want in zip(lines, wanted, strict=True)
    )


def same_value(given: Any, expected: Any, tolerance: float) -> bool:
    """Whether a function's result is right. `given` is as `trial_child.encode` gives it, `expected` a JSON value.

    A tuple counts as a list, keys of objects are compared as text, True isn't 1, and a float within the tolerance of an
    expected float is right. What JSON has no word for equals nothing.
    """
    try:
        return _same(given, expected, tolerance)
    except (RecursionError, ValueError, TypeError, ArithmeticError):
        return False


def _lines(text: str) -> list[list[str]]:
    lines = [line.split() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        del lines[-1]
    return lines


def _same_line(words: list[str], wanted: list[str], tolerance: float) -> bool:
    return len(words) == len(wanted) and all(
        word == want or _near(word, want, tolerance) for word, want in zip(words, wanted, strict=True)
    )


def _near(word: str, want: str, tolerance: float) -> bool:
    if not tolerance or len(word) > _LONGEST_NUMBER or not _DECIMAL.fullmatch(want) or not _NUMBER.fullmatch(word):
        return False
    return _close(float(word), float(want), tolerance)


def _close(one: float, other: float, tolerance: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _same(given: Any, expected: Any, tolerance: float) -> bool:
    """Nothing is decoded that can't be right: of a fraction's or a set's few characters that may take hours."""
    if isinstance(given, dict):
        ((tag, content),) = given.items()
        if tag == "d":
            # Keys of a JSON object are texts, and functions return numbers as keys.
            named = {_key(key): value for key, value in content}
            return (
                isinstance(expected, dict)
                and named.keys() == expected.keys()
                and all(_same(value, expected[key], tolerance) for key, value in named.items())
            )
        if tag not in ("t", "dq", "it", "i"):
            return False
        given = int(content, 16) if tag == "i" else content
    if isinstance(given, list):
        return (
            isinstance(expected, list)
            and len(given) == len(expected)
            and all(_same(one, other, tolerance) for one, other in zip(given, expected, strict=True))
        )
    if type(given) in (int, float) and type(expected) in (int, float):
        return _close(given, expected, tolerance) if isinstance(expected, float) else bool(given == expected)
    return type(given) is type(expected) and bool(given == expected)


def _key(key: Any) -> str:
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    if not isinstance(key, str | int | float):
        raise TypeError("no key of a JSON object")
    return str(key)
