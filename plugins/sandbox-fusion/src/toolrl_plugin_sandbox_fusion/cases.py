"""Test cases and their verdicts.

    {"inputs": ["1 2\\n", …], "outputs": ["3\\n", …]}                        standard input and output
    {"fn_name": "add", "inputs": ["1\\n2", …], "outputs": ["3", …]}          arguments, one JSON value a line
    {"assert_case": ["assert add(1, 2) == 3", …]}                            Python statements (asserts.py)

An input of None is no standard input.

A function is called by a program around the solution, which gets the arguments by standard input. The solution runs as
a module of its own, in which the names of the usual standard modules are there without an import, as solutions of
programming sites expect it. What it prints itself goes to standard error: standard output holds the result alone. A
function that isn't there, or raises, ends the program with exit code 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from toolrl.errors import DataError
from toolrl_plugin_sandbox_fusion.api import ERROR, FAILED, FINISHED, SUCCESS, TIME_LIMIT, RunResponse

_PROGRAM = """
import importlib, json, sys, traceback, types

SOURCE = {source}
NAME = {name}
STARRED = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
           "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing")


def solution_module():
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    names = vars(module)
    exec("\\n".join(f"from {{name}} import *" for name in STARRED), names)
    names.update((name, importlib.import_module(name)) for name in STARRED[:-2])
    given = dict(names)
    exec(compile(SOURCE, "solution.py", "exec"), names)
    return names, given


def function_of(names, given):
    if NAME in names and (NAME not in given or names[NAME] is not given[NAME]):
        return names[NAME]
    if "Solution" in names:
        return getattr(names["Solution"](), NAME)
    raise NameError("the solution has no function or method " + repr(NAME))


def main():
    out, sys.stdout = sys.stdout, sys.stderr
    arguments = [json.loads(line) for line in sys.stdin.read().split("\\n") if line.strip()]
    try:
        result = function_of(*solution_module())(*arguments)
        as_json = result is None or isinstance(result, (bool, dict, list, tuple))
        text = json.dumps(result, default=str) if as_json else str(result)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    print(text, file=out)


main()
"""


class Status(Enum):
    """What became of a case; the value is the code that verl gives it."""

    PASSED = True
    WRONG = False
    API_ERROR = -1
    """The sandbox couldn't be asked, or failed itself."""
    RUNTIME_ERROR = -2
    TIMEOUT = -3
    """The program ran out of time."""
    COMPILE_ERROR = -4
    """The program doesn't compile, or not in time; all cases after the first such one count as this, too."""


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """One program to run, and what it should print."""

    code: str
    stdin: str | None
    expected: str | None
    value: Any = None
    """For a function: the expected result where the data holds it as a value and not as a text."""


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of a task."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    function: str | None = None
    asserts: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.inputs)

    def first(self, count: int) -> Cases:
        """Only the first so many."""
        return Cases(self.inputs[:count], self.outputs[:count], self.function, self.asserts[:count])

    def case(self, index: int, solution: str) -> ProgramCase:
        """A case with the solution in its program."""
        given, expected = self.inputs[index], self.outputs[index]
        text = None if expected is None else str(expected)
        if self.function is None:
            return ProgramCase(solution, None if given is None else str(given), text)
        value = None if isinstance(expected, str) else expected
        return ProgramCase(function_program(solution, self.function), arguments_text(given), text, value)


def read_cases(given: Any, where: str, language: str = "python") -> Cases:
    """The cases of a row, from an object or the JSON of one. Raises DataError."""

    def wrong(message: str) -> DataError:
        return DataError(
            f"its test cases {message}",
            where=where,
            hint='The reward `sandbox_fusion` takes {"inputs": […], "outputs": […]}, or the JSON of it.',
        )

    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise wrong(f"are no JSON: {error}") from error
    if not isinstance(given, Mapping):
        raise wrong(f"are {'missing' if given is None else type(given).__name__}, expected an object")
    asserts = given.get("assert_case") or ()
    count = len(asserts) if _is_list(asserts) else 0
    inputs, outputs = given.get("inputs", [""] * count), given.get("outputs", [None] * count)
    if not all(_is_list(part) for part in (inputs, outputs, asserts)):
        raise wrong("have `inputs`, `outputs` or `assert_case` that is no list")
    if len(inputs) != len(outputs) or (asserts and len(asserts) != len(inputs)):
        raise wrong(f"are {len(inputs)} inputs, {len(outputs)} outputs, {len(asserts)} asserts: not as many of each")
    if not inputs:
        raise wrong("are none")
    if asserts and (language != "python" or given.get("fn_name") or any(inputs) or outputs != [None] * len(outputs)):
        raise wrong("have `assert_case` and inputs, outputs, fn_name or another language; expected statements alone")
    if None in outputs and not asserts and not given.get("fn_name"):
        raise wrong(f"have no output in outputs[{outputs.index(None)}]: every program would pass")
    function = given.get("fn_name") or None
    if function is not None and (not isinstance(function, str) or language != "python"):
        raise wrong(f"have fn_name {function!r:.80} for {language}: only functions of Python programs can be called")
    for index, value in enumerate(inputs if function is not None else ()):
        try:
            for line in filter(str.strip, value.split("\n") if isinstance(value, str) else ()):
                json.loads(line)
        except (ValueError, RecursionError) as error:
            raise wrong(f"have arguments of {function!r} that are no JSON, in inputs[{index}]: {error}") from error
    return Cases(inputs, outputs, function, tuple(str(line) for line in asserts))


def function_program(source: str, function: str) -> str:
    """The program that calls `function` of the solution `source`."""
    return _PROGRAM.format(source=ascii(source), name=ascii(function)).lstrip()


def arguments_text(case: Any) -> str:
    """A case's input as the program reads it: a text as it is, a list as one argument a line, anything else as the
    only argument."""
    if isinstance(case, str):
        return case
    arguments = case if isinstance(case, list | tuple) else [] if case is None else [case]
    return "\n".join(json.dumps(argument, default=str) for argument in arguments)


def verdict(response: RunResponse, case: ProgramCase) -> Status:
    """The status of a case, from the sandbox's answer."""
    compiled, run = response.compile_result, response.run_result
    if response.status == SUCCESS and run is not None and run.status == FINISHED:
        return Status.PASSED if matches(run.stdout or "", case) else Status.WRONG
    if response.status != FAILED:
        return Status.API_ERROR
    if compiled is not None and compiled.failed:
        return Status.COMPILE_ERROR
    if run is None:
        return Status.API_ERROR
    if run.status == TIME_LIMIT:
        return Status.TIMEOUT
    if run.status == ERROR or (run.status == FINISHED and run.failed):
        return Status.RUNTIME_ERROR
    return Status.API_ERROR


def matches(stdout: str, case: ProgramCase) -> bool:
    """The same text but for line breaks at its end; for a function's result, the same value counts as well."""
    if case.expected is None:  # The function returns None.
        return stdout.strip() == "null"
    if stdout.rstrip("\n") == case.expected.rstrip("\n"):
        return True
    if case.value is None or len(stdout) > 65536 + 8 * len(repr(case.value)):  # no form of it is so much longer
        return False
    try:
        return _same(json.loads(stdout), case.value)
    except (ValueError, RecursionError):
        return False


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: True isn't 1, and 1.0 is."""
    if isinstance(other, list | tuple):
        pairs = isinstance(one, list) and len(one) == len(other)
        return pairs and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(other, Mapping):
        keys = isinstance(one, dict) and one.keys() == {str(key) for key in other}
        return keys and all(_same(one[str(key)], value) for key, value in other.items())
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
