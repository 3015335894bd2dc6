"""Test cases that are Python statements, `{"assert_case": ["assert add(1, 2) == 3"]}`, judged apart from the program.

A program that runs in one process with its test can pass it without being right: it leaves with status 0, replaces
what an assert compares with, or reads the expected values. So the statements run in a sandbox of their own
(assert_judge.py), the program in another (assert_subject.py), and only operations and plain results pass between them.
"""

from __future__ import annotations

import ast
import builtins
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from toolrl_common.plain_values import program_text
from toolrl_plugin_sandbox_fusion import assert_judge, assert_subject
from toolrl_plugin_sandbox_fusion.api import FINISHED, SUCCESS, RunResponse
from toolrl_plugin_sandbox_fusion.cases import ProgramCase, Status, verdict

ROUNDS = 16
"""Maximum number of times that a test goes on with results of the program. Most tests need one."""
RunProgram = Callable[[str, str], Awaitable[RunResponse]]
"""Runs a Python program, the first argument, with the second as standard input."""

_log = logging.getLogger(__name__)
_JUDGE = program_text(assert_judge.__file__)
_SUBJECT = program_text(assert_subject.__file__)
_COMMON = {
    "abs", "all", "any", "bool", "bytes", "dict", "enumerate", "float", "frozenset", "int", "isinstance", "issubclass",
    "iter", "len", "list", "map", "max", "min", "next", "print", "range", "repr", "reversed", "round", "set", "sorted",
    "str", "sum", "tuple", "type", "zip", "isclose", "Counter", "defaultdict", "deque", "OrderedDict", "Decimal",
    "Fraction",
}  # fmt: skip
"""Names that a test itself uses; they are the program's only if nothing else is tested."""


class InvalidStatementsError(Exception):
    """The statements can't be judged apart from the program."""


class JudgeFailedError(Exception):
    """The sandbox didn't run the statements."""


@dataclass(frozen=True, slots=True)
class _Said:
    """The judge's answer: operations whose results it needs, or a verdict."""

    operations: list[Any]
    passed: bool = False
    raised: str = ""


class Statements:
    """The statements of one case."""

    def __init__(self, text: str) -> None:
        """Raises InvalidStatementsError if they aren't Python or test nothing of the program."""
        self._text = text
        self._tested = tested_names(text)
        self._first: _Said | None = None

    async def judge(self, source: str, run: RunProgram) -> tuple[Status, str]:
        """The status of the program `source`, and what the sandbox said about it. Raises InvalidStatementsError and
        JudgeFailedError; neither depends on the program."""
        if self._first is None:  # It is the same for all programs.
            self._first = await self._ask(run, [], [])
        said = self._first
        for _ in range(ROUNDS):
            response = await run(_SUBJECT, json.dumps({"source": source, "operations": said.operations}))
            results = _results(response, len(said.operations))
            if results is None:
                # A program that leaves by itself, even with status 0, hasn't answered.
                status = verdict(response, ProgramCase("", None, "results"))
                return (Status.RUNTIME_ERROR if status is Status.WRONG else status), response.message
            said = await self._ask(run, said.operations, results)
            if not said.operations:
                failed = Status.WRONG if said.raised == "AssertionError" else Status.RUNTIME_ERROR
                return (Status.PASSED if said.passed else failed), ""
        return Status.TIMEOUT, ""

    async def _ask(self, run: RunProgram, operations: list[Any], results: list[Any]) -> _Said:
        """Run the statements with the results that are known."""
        request = {"statements": self._text, "tested": self._tested, "operations": operations, "results": results}
        response = await run(_JUDGE, json.dumps(request))
        done = response.run_result
        if done is None or response.status != SUCCESS or done.status != FINISHED:
            if not results:
                raise JudgeFailedError(response.message or (done.output if done else "") or response.status)
            # Only the results differ from the run before: numbers too large to compute with, for example.
            return _Said([], raised="ResultError")
        try:
            said = json.loads(done.stdout or "")
        except ValueError as error:  # The statements ended their process themselves, or ask for too much.
            if results:
                return _Said([], raised="ResultError")
            raise InvalidStatementsError(f"they give no verdict: {done.output!r:.200}") from error
        if said.get("invalid") and not results:
            raise InvalidStatementsError(said["message"])
        if said.get("invalid"):
            # It may be the program's doing, which must not end the run.
            _log.warning("a test can't be judged with a program's results: %s: %.200r", said["message"], self._text)
            return _Said([], raised="ResultError")
        if not results and not said.get("operations"):
            raised = f"{said['failed']}: {said['message']}" if "failed" in said else ""
            raise InvalidStatementsError(raised or "no statement uses the program")
        return _Said(said.get("operations", []), said.get("passed", False), said.get("failed", ""))


def tested_names(text: str) -> list[str]:
    """The names in the statements that are the program's. Raises InvalidStatementsError."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidStatementsError(f"not Python: {error}") from error
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    own = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    named = (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)
    own |= {node.name for node in nodes if isinstance(node, named) and node.name is not None}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            own |= {(name.asname or name.name).partition(".")[0] for name in node.names}
    modules = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    modules &= {*assert_judge.STARRED, *assert_judge.ALIASES, "numpy"}
    free = used - own - modules
    unknown = {name for name in free if not hasattr(builtins, name) and assert_judge.standard_name(name) is None}
    # A program may be asked to define `add` or `sum`, which are names of Python as well.
    tested = unknown or free - _COMMON or free
    if not tested:
        raise InvalidStatementsError("no statement uses a name of the program")
    return sorted(tested)


def _results(response: RunResponse, count: int) -> list[Any] | None:
    """The results of the operations; None if the program didn't give them."""
    done = response.run_result
    if done is None or response.status != SUCCESS or done.status != FINISHED:
        return None
    try:
        results = json.loads(done.stdout or "")
    except (ValueError, RecursionError):
        return None
    right = isinstance(results, list) and len(results) == count and all(isinstance(item, dict) for item in results)
    return results if right else None
