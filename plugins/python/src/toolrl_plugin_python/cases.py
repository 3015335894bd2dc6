"""Test cases of a task, in the shapes in which data sets have them.

    {"inputs": ["1 2\\n", …], "outputs": ["3\\n", …]}               standard input and output (APPS, TACO, verl)
    {"fn_name": "add", "inputs": [[1, 2], …], "outputs": [3, …]}    calls of a function, or of a method of `Solution`
    [{"input": "1 2\\n", "output": "3\\n"}, …]                       the same; `test_cases` holds such a list
    ["assert add(1, 2) == 3", …]                                    asserts (MBPP); `test_list` holds such a list
    "def check(candidate): assert candidate(1, 2) == 3 …"           the same (HumanEval); `test` holds one

An assert is taken apart into a call and what it should give, both of literals, so that it is judged outside of where
the program runs. Arguments of a function may also be a text with one JSON value a line, and the result is JSON then.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolrl.errors import DataError
from toolrl.types import Task
from toolrl_common.plain_values import encode

COMPANIONS = ("fn_name", "entry_point")
"""Fields of a row that name the function of its cases."""
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_VIEWS: dict[str, Callable[..., Any]] = {
    it.__name__: it for it in (abs, dict, frozenset, len, list, round, set, sorted, str, sum, tuple)
}
"""What an assert may apply to a result, and to what it expects."""


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
    keywords: Mapping[str, Any] = field(default_factory=dict)
    holds: Callable[[Any, Any], Any] | None = None
    """Of an assert: compares the result with what is expected; None compares them as JSON values."""


Case = OutputCase | CallCase


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
            "asserts of a call with literals, or such a `check(candidate)`, as a value or as the JSON of it.",
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
        return list(_asserts(given, row))
    if not _is_list(given):
        raise _WrongError(f"are {'missing' if given is None else type(given).__name__}, expected a list or an object")
    if all(isinstance(item, str) for item in given):
        return [case for item in given for case in _asserts(item, row)]
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


def _asserts(test: str, row: Mapping[str, Any]) -> Iterator[CallCase]:
    """The asserts of a test program: those at its top and those of `check`, in which a parameter is the function."""
    entry = str(row.get("entry_point") or row.get("fn_name") or "").removeprefix("Solution().")
    try:
        statements: list[tuple[ast.stmt, str]] = [(node, "") for node in ast.parse(test).body]
        for node, candidate in statements:
            if isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args:
                if not entry:
                    raise _WrongError("define check(candidate), and no `entry_point` names its argument")
                statements += [(inner, node.args.args[0].arg) for inner in node.body]
            elif isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
                yield _assert(node.test, {candidate: entry})
            elif not _is_idle(node):
                raise _WrongError(f"have more than asserts: {ast.unparse(node)!r:.120}")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _WrongError(f"are no Python: {error}: {test!r:.120}") from None


def _is_idle(node: ast.stmt) -> bool:
    """Whether a statement changes nothing of what asserts of literals find: what it may bind, they don't use."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or ast.unparse(node).startswith("check(")
    return isinstance(node, ast.Assert | ast.Assign | ast.Import | ast.ImportFrom | ast.Pass)


def _assert(test: ast.expr, names: Mapping[str, str]) -> CallCase:
    """One assert: a call, alone or compared with a literal."""
    match test:
        case ast.Compare(
            ast.Call(ast.Name("abs"), [ast.BinOp(call, ast.Sub(), wanted)]), [ast.Lt() | ast.LtE()], [far]
        ):
            return _case(call, wanted, names, functools.partial(math.isclose, rel_tol=0.0, abs_tol=_literal(far)))
        case ast.Call(ast.Name("isclose") | ast.Attribute(attr="isclose"), [call, wanted], keywords):
            given = {str(it.arg): _literal(it.value) for it in keywords}
            return _case(call, wanted, names, functools.partial(math.isclose, **given))
        case ast.Compare(ast.Call() as call, [op], [wanted]) | ast.Compare(
            wanted, [ast.Eq() as op], [ast.Call() as call]
        ):
            if type(op) in _COMPARISONS:
                return _case(call, wanted, names, _COMPARISONS[type(op)])
        case ast.UnaryOp(ast.Not(), ast.Call() as call):
            return _case(call, ast.Constant(False), names, _truth)
        case ast.Call():
            return _case(test, ast.Constant(True), names, _truth)
    raise _WrongError(f"have an assert that isn't a call compared with a literal: {ast.unparse(test)!r:.120}")


def _case(call: ast.expr, wanted: ast.expr, names: Mapping[str, str], holds: Callable[[Any, Any], Any]) -> CallCase:
    match call:
        case ast.Call(ast.Name(name), [ast.Call() as inner, *more], []) if name in _VIEWS.keys() - names.values():
            view, rest = _VIEWS[name], [_literal(it) for it in more]
            return _case(inner, wanted, names, lambda value, expected: holds(view(value, *rest), expected))
        case ast.Call(ast.Name(name), args, keywords):
            pass
        case ast.Call(ast.Attribute(ast.Call(ast.Name("Solution"), [], []), name), args, keywords):
            pass
        case _:
            raise _WrongError(f"call no function of the program's: {ast.unparse(call)!r:.120}")
    if hasattr(builtins, name) and name not in names.values():
        raise _WrongError(f"call {name!r}, no function of the program's; if it is one, name it in `entry_point`")
    given = {str(it.arg): _literal(it.value) for it in keywords}
    return CallCase(names.get(name, name), tuple(map(_literal, args)), (_literal(wanted),), given, holds)


def _truth(value: Any, expected: bool) -> bool:
    return bool(value) is expected


def _literal(node: ast.expr) -> Any:
    try:
        match node:
            case ast.Call(ast.Name(name), args, []) if name in _VIEWS:
                value = _VIEWS[name](*map(_literal, args))
            case _:
                value = ast.literal_eval(node)
        encode(value)
    except (ValueError, TypeError):
        raise _WrongError(f"have something else than literals: {ast.unparse(node)!r:.120}") from None
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
