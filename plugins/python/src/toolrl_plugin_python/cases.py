"""Test cases of a task, in the shapes in which data sets have them.

    {"inputs": ["1 2\\n", …], "outputs": ["3\\n", …]}               standard input and output (APPS, TACO, verl)
    {"fn_name": "add", "inputs": [[1, 2], …], "outputs": [3, …]}    calls of a function, or of a method of `Solution`
    [{"input": "1 2\\n", "output": "3\\n"}, …]                       the same; `test_cases` holds such a list
    ["assert add(1, 2) == 3", …]                                    asserts (MBPP); `test_list` holds such a list
    "def check(candidate): …"                                       a test program (HumanEval); `test` holds one

Arguments of a function may also be a text with one JSON value a line, the expected result then is JSON as well.
"""

from __future__ import annotations

import ast
import builtins
import json
import symtable
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolrl.errors import DataError
from toolrl.types import Task
from toolrl_plugin_python.trial_child import MODULES

COMPANIONS = ("fn_name", "entry_point", "test_setup_code", "test_imports")
"""Fields of a row that say more of its cases."""
LONGEST_TEST = 1 << 20
_COMPARES = "isclose"


@dataclass(frozen=True, slots=True)
class OutputCase:
    """A whole program: what it reads, and what it should print."""

    stdin: str
    expected: str


@dataclass(frozen=True, slots=True)
class CallCase:
    """A function: what it is called with, and what it may return."""

    function: str
    arguments: tuple[Any, ...]
    expected: tuple[Any, ...]
    """Any of these is right."""


@dataclass(frozen=True, slots=True)
class AssertCase:
    """A test program, and the names in it that are the program's."""

    test: str
    names: tuple[str, ...]


Case = OutputCase | CallCase | AssertCase


def read_cases(task: Task, field: str | None) -> list[Case]:
    """The cases of a task: its answer, or a field of its row. Raises DataError."""
    where = f"task {task.id!r}"
    given = task.answer if field is None else task.extra.get(field)
    row = {name: task.extra[name] for name in COMPANIONS if task.extra.get(name)}
    try:
        cases = _cases(_parsed(given), row)
    except _WrongError as error:
        raise DataError(
            f"its test cases {error}",
            where=where,
            hint='The reward `code` takes {"inputs": […], "outputs": […]} with or without "fn_name", a list of '
            "asserts, or a test program, as a value or as the JSON of it.",
        ) from None
    if not cases:
        raise DataError("it has no test cases", where=where, hint="Leave such tasks out, or name the right field.")
    return cases


class _WrongError(Exception):
    pass


def _parsed(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return given


def _cases(given: Any, row: Mapping[str, Any]) -> list[Case]:
    if isinstance(given, Mapping):
        row = {**row, **{name: given[name] for name in COMPANIONS if given.get(name)}}
        if given.get("inputs") is not None:
            return _pairs(given["inputs"], given.get("outputs"), row)
        for name in ("test_cases", "test_list", "assert_case", "test"):
            if given.get(name) is not None:
                return _cases(_parsed(given[name]), row)
        raise _WrongError(
            f"have none of `inputs`, `test_cases`, `test_list`, `test`, only {sorted(map(str, given))[:9]}"
        )
    if isinstance(given, str):
        return [_test(given, row, called=True)]
    if not _is_list(given):
        raise _WrongError(f"are {'missing' if given is None else type(given).__name__}, expected a list or an object")
    if all(isinstance(item, str) for item in given):
        return [_test(item, row) for item in given]
    if all(isinstance(item, Mapping) and "input" in item and "output" in item for item in given):
        rows = ({**row, "fn_name": item.get("fn_name") or row.get("fn_name")} for item in given)
        return [case for item, its in zip(given, rows, strict=True)
                for case in _pairs([item["input"]], [item["output"]], its)]  # fmt: skip
    raise _WrongError("are a list of neither texts nor objects with `input` and `output`")


def _pairs(inputs: Any, outputs: Any, row: Mapping[str, Any]) -> list[Case]:
    if not _is_list(inputs) or not _is_list(outputs) or len(inputs) != len(outputs):
        raise _WrongError("have `inputs` and `outputs` that aren't two lists of one length")
    function = row.get("fn_name")
    if not function:
        return [OutputCase(_text(given), _text(out)) for given, out in zip(inputs, outputs, strict=True)]
    if not isinstance(function, str):
        raise _WrongError(f"have fn_name {function!r:.80}, expected a name")
    return [_call(function, given, out) for given, out in zip(inputs, outputs, strict=True)]


def _text(value: Any) -> str:
    """Standard input or output; a list stands for its lines."""
    if _is_list(value) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    if isinstance(value, str):
        return value
    raise _WrongError(f"have an input or output that is no text: {value!r:.80}")


def _call(function: str, given: Any, expected: Any) -> CallCase:
    if isinstance(given, str):
        try:
            arguments = tuple(json.loads(line) for line in given.split("\n") if line.strip())
        except (ValueError, RecursionError) as error:
            raise _WrongError(f"have arguments of {function!r} that are no JSON: {error}") from None
        return CallCase(function, arguments, (_parsed(expected),))
    if not _is_list(given):
        raise _WrongError(f"have arguments of {function!r} that are no list: {given!r:.80}")
    # Data sets also write the result as a list of one.
    wrapped = (expected[0],) if _is_list(expected) and len(expected) == 1 else ()
    return CallCase(function, tuple(given), (expected, *wrapped))


def _test(test: str, row: Mapping[str, Any], *, called: bool = False) -> AssertCase:
    """One test program. Where it defines `check`, that is called with the entry point, unless the test does so itself;
    `called`: in any case."""
    entry = row.get("entry_point") or row.get("fn_name")
    parts = [*row.get("test_imports", ()), row.get("test_setup_code", ""), test]
    tree = _tree("\n".join(str(part) for part in parts if part))
    defined = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    if defined and (called or not any(isinstance(node, ast.Name) and node.id == "check" for node in ast.walk(tree))):
        if not entry:
            raise _WrongError("define check(candidate), and no `entry_point` names its argument")
        tree.body += _tree(f"check({entry})").body
    try:
        tree = ast.fix_missing_locations(_Methods().visit(tree))
        source = ast.unparse(tree)
        names = _free_names(source)
    except RecursionError:
        raise _WrongError(f"are nested too deeply: {test!r:.120}") from None
    except SyntaxError as error:  # which the parser lets through
        raise _WrongError(f"are no Python: {error}: {test!r:.120}") from None
    entry = str(entry or "").removeprefix("Solution().")
    if entry:
        names.add(entry)
    if _COMPARES in names and entry != _COMPARES and len(names) > 1:
        # What compares isn't the program's to say, as long as that has another function to be tested.
        names.remove(_COMPARES)
        source = f"from math import {_COMPARES}\n{source}"
    classes = sorted(name for name in names if name[:1].isupper())
    if classes:
        raise _WrongError(f"use {classes[0]!r}, a class of the program's: only functions can be tested")
    if not names:
        raise _WrongError(f"call nothing of the program's; name its function in `entry_point`: {test!r:.120}")
    if not any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(tree)):
        raise _WrongError(f"assert nothing: {test!r:.120}")
    return AssertCase(source, tuple(sorted(names)))


class _Methods(ast.NodeTransformer):
    """`Solution().name` is what is called `name` here."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        made = node.value
        is_solution = isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "Solution"
        return ast.Name(node.attr, ast.Load()) if is_solution and isinstance(node.ctx, ast.Load) else node


def _tree(program: str) -> ast.Module:
    if len(program) > LONGEST_TEST:
        raise _WrongError(f"have a test of {len(program)} characters, at most {LONGEST_TEST} are run")
    try:
        return ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _WrongError(f"are no Python: {error}: {program!r:.120}") from None


def _free_names(source: str) -> set[str]:
    """Names that the test uses without binding them: they are the program's."""
    used, bound = set[str](), {*dir(builtins), *MODULES, "__name__", "__file__"}
    waiting = [symtable.symtable(source, "test.py", "exec")]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        for symbol in table.get_symbols():
            if table.get_type() == "module" and symbol.is_local():
                bound.add(symbol.get_name())
            elif symbol.is_global():
                (bound if symbol.is_assigned() else used).add(symbol.get_name())
    return used - bound


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
