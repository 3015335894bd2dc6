"""One test case against a program, in the sandbox.

Nothing that is expected ever comes to where the program runs, so there is nothing that it could find out or forge: a
whole program gets its input, a function its arguments, and what comes out is compared out here.

Output is compared line by line and word by word: how words of a line are separated, blanks at a line's end and empty
lines at the end of all don't matter. Two words are the same where their letters are; where the expected one is a number
with a point or an exponent, a number within the relative tolerance, or that rounds to it, is right as well. Whole
numbers have to be exact.

What the program does to its own process, patch builtins, write to any descriptor, exit, fork, ends in one of these:
another value, or none.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

from toolrl_common.plain_values import decode, encode, program_text
from toolrl_plugin_python import trial_child
from toolrl_plugin_python.cases import CallCase, Case, OutputCase
from toolrl_plugin_python.keeper_process import interpreter
from toolrl_plugin_python.sandbox import Finished, ProgramLimits, Sandbox

Kind = Literal["passed", "wrong", "error", "timeout", "limit"]
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
_NOISE = 1e-12
_NOISE_DIGITS = 15
"""A number below _NOISE with so many digits is zero but for rounding."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a case."""

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
        self._child = program_text(trial_child.__file__).encode()
        self._python = [interpreter(), "-s", "-S", "-P", "-B"]
        self._env = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        if search_path:
            self._env["PYTHONPATH"] = os.pathsep.join(search_path)

    async def verdict(self, case: Case, source: str) -> Verdict:
        """Run one case. Raises KeeperError where the sandbox fails."""
        if isinstance(case, OutputCase):
            return await self._printed(case, source)
        return await self._called(case, source)

    async def _printed(self, case: OutputCase, source: str) -> Verdict:
        """A whole program."""
        length = 2 * len(case.expected.encode(errors="replace"))
        done = await self._run({"solution.py": _bytes(source)}, case.stdin, length)
        if (ended := _ended(done)) is not None:
            return ended
        if done.exit_code != 0:
            return Verdict("error", done.stderr[-300:].decode("utf-8", errors="replace"))
        text = done.stdout.decode("utf-8", errors="replace")
        return Verdict("passed" if same_output(text, case.expected, self._tolerance) else "wrong")

    async def _called(self, case: CallCase, source: str) -> Verdict:
        """A function of the program."""
        args = [encode(item) for item in case.arguments]
        kwargs = {name: encode(item) for name, item in case.keywords.items()}
        request = json.dumps({"source": source, "function": case.function, "args": args, "kwargs": kwargs})
        # What is longer can't be right, and might take long to compare: numbers can be chosen that collide in a set.
        done = await self._run({"solution.py": self._child}, request, _LONGER * len(repr(case.expected)))
        if (ended := _ended(done)) is not None:
            return ended
        said = await asyncio.to_thread(_read, done.stdout)
        if "value" not in said:
            return Verdict("error", f"{said.get('raised', 'no answer')}: {said.get('message', '')}"[:300])
        right = await asyncio.to_thread(self._is_right, said["value"], case)
        return Verdict("passed" if right else "wrong")

    def _is_right(self, value: Any, case: CallCase) -> bool:
        try:
            given = decode(value)
            if case.holds is not None:
                return bool(case.holds(given, case.expected[0]))
            return any(same_value(given, expected, self._tolerance) for expected in case.expected)
        except (RecursionError, ValueError, TypeError, ArithmeticError):
            return False

    async def _run(self, files: dict[str, bytes], stdin: str, length: int) -> Finished:
        """What Python makes of `solution.py`; `length` bytes of output are expected at most."""
        limits = replace(self._limits, output_bytes=length + _SPARE_OUTPUT)
        argv = [*self._python, "solution.py"]
        return await self.sandbox.run(argv, files=files, stdin=_bytes(stdin), env=self._env, limits=limits)


def _ended(done: Finished) -> Verdict | None:
    """The verdict on a program that was ended for a limit."""
    if done.timed_out or done.exceeded == "cpu":
        return Verdict("timeout")
    if done.exceeded or done.output_cut:
        return Verdict("limit", f"it went over its limit of {done.exceeded or 'output'}")
    return None


def _read(said: bytes) -> dict[str, Any]:
    """An answer; an empty one where it can't be read."""
    try:
        read = json.loads(said)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


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
    """Whether a function's result is right; `expected` is a JSON value. Raises TypeError for what JSON has no word for.

    A tuple counts as a list, keys of objects are compared as text, True isn't 1, and a float within the tolerance of an
    expected float is right.
    """
    if isinstance(given, dict) and isinstance(expected, dict):
        # Keys of a JSON object are texts, and functions return numbers as keys.
        named = {_key(key): value for key, value in given.items()}
        return named.keys() == expected.keys() and all(
            same_value(value, expected[key], tolerance) for key, value in named.items()
        )
    if isinstance(given, list | tuple) and isinstance(expected, list):
        return len(given) == len(expected) and all(
            same_value(one, other, tolerance) for one, other in zip(given, expected, strict=True)
        )
    if type(given) in (int, float) and type(expected) in (int, float):
        return _close(given, repr(expected), tolerance) if isinstance(expected, float) else bool(given == expected)
    return type(given) is type(expected) and bool(given == expected)


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
    return _close(float(word), want, tolerance)


def _close(given: float, written: str, tolerance: float) -> bool:
    """Whether a number is relatively close to the one that is expected, as it is written, or rounds to it.

    An absolute tolerance alone would take 0.0 for 1.2e-07. Zero, and what a reference solution left of zero by rounding
    (6.123233995736766e-17), has no relative tolerance.
    """
    expected = float(written)
    if given == expected:
        return True
    try:
        if not (math.isfinite(given) and math.isfinite(expected)):
            return False
    except OverflowError:  # an int beyond all floats
        return False
    number = Decimal(written)
    noise = abs(expected) < _NOISE and len(number.as_tuple().digits) >= _NOISE_DIGITS
    half = tolerance if noise else min(tolerance, float(Decimal(5).scaleb(int(number.as_tuple().exponent) - 1)))
    return math.isclose(given, expected, rel_tol=tolerance, abs_tol=half if tolerance else 0.0)


def _key(key: Any) -> str:
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    if not isinstance(key, str | int | float):
        raise TypeError("no key of a JSON object")
    return str(key)
