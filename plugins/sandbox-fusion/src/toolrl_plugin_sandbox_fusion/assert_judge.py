"""Runs the statements of an `assert_case`, in a sandbox of its own that the judged program never enters.

Standard input is JSON, `{"statements": text, "tested": [name, …], "operations": […], "results": […]}`. The names in
`tested` belong to the judged program. What is done to them is recorded as a list of operations, and their results come
from the program's sandbox (assert_subject.py). The statements run until they need a result that isn't known yet; then
the operations are the answer, and they run again when the results are there:

    assert Stack().push(1).size() == 1      name Stack, call, attribute push, call, attribute size, call
                                            → `{"operations": [six]}`, and with their results → `{"passed": true}`

Standard output is one line: `{"operations": […]}`, `{"passed": true}`, or `{"failed": type name, "message": text}`;
`"invalid": true` beside it says that the statements are at fault, not the program.
"""

import ast
import builtins
import contextlib
import importlib
import json
import random
import sys
from typing import Any

# In the sandbox both are defined above.
with contextlib.suppress(ImportError):
    from toolrl_common.plain_values import decode, encode

STARRED = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
           "itertools", "functools", "operator", "typing")  # fmt: skip
"""Names of these are there without an import: tests rely on the imports of their solution."""
ALIASES = {"np": "numpy"}
MOST_GUESSES = 100_000
MOST_UNKNOWN = 1000
"""Maximum number of operations ahead of the known results: a loop that waits for one of them has no end."""


class ResultNeededError(BaseException):
    """What the statements do next depends on a result that isn't known. No `except` of theirs catches it."""


class TooFarAheadError(BaseException):
    """Ends a run of the statements after MOST_UNKNOWN operations without a result."""


class InvalidTestError(BaseException):
    """The statements do something that can't cross to the program's sandbox."""


class Remote:
    """A value in the program's sandbox: an object, or a result that isn't known yet. Its own comparison has no say."""

    def __init__(self, index: int, known: bool) -> None:
        self.__dict__.update(_index=index, _known=known)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return record("call", self, list(args), kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return record("attribute", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        record("set_attribute", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._known_result("item", key)

    def __len__(self) -> Any:
        return self._known_result("len")

    def __str__(self) -> Any:
        return self._known_result("str")

    def __repr__(self) -> Any:
        return self._known_result("repr")

    def __iter__(self) -> Any:
        items = self._known_result("list")
        if isinstance(items, Remote):  # Objects, which cross one by one.
            items = [record("item", items, index) for index in range(len(items))]
        return iter(items)

    def __bool__(self) -> bool:
        return self._known or _yes(self)

    def __eq__(self, other: object) -> bool:
        return self is other if self._known else _yes(self)

    def __hash__(self) -> int:
        if not self._known:
            raise ResultNeededError
        return hash(self._index)

    def _known_result(self, kind: str, *operands: Any) -> Any:
        result = record(kind, self, *operands) if self._known else None
        unknown = not self._known or (isinstance(result, Remote) and not result._known)
        return _GUESSES.get(kind, Guess)() if unknown else result


class Guess:
    """A value in the place of one that depends on a result that isn't known yet: right wherever it is compared, so that
    the statements go on and ask for all their results at once. They run again with the real ones."""

    def __init__(self, *_: Any) -> None:
        # A loop that waits for a guess to change has no end.
        _guesses.append(None)
        if len(_guesses) > MOST_GUESSES:
            raise TooFarAheadError

    def __iter__(self) -> Any:
        return iter(())

    def __hash__(self) -> int:
        raise ResultNeededError

    def __float__(self) -> float:
        return 0.0


def _guess(self: Any, *_: Any) -> Any:
    """The result of an operator on an unknown value. Those of the program's objects have no say: one could be
    whatever a test asks for."""
    if isinstance(self, Remote) and self._known:
        raise TypeError("operators don't apply to objects of the program; compare their attributes")
    return Guess()


def _yes(self: Any, *_: Any) -> bool:
    return bool(type(_guess(self)) is Guess)


_guesses: list[None] = []
_GUESSES: dict[str, Any] = {"len": int, "str": str, "repr": str, "list": list}
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "and", "or", "xor", "matmul")
for _name in (*_BINARY, *(f"r{name}" for name in _BINARY), "neg", "pos", "abs", "round", "invert"):
    for _kind in (Remote, Guess):
        setattr(_kind, f"__{_name}__", _guess)
for _name in ("lt", "le", "gt", "ge"):
    for _kind in (Remote, Guess):
        setattr(_kind, f"__{_name}__", _yes)
for _name in ("getattr", "getitem", "call"):
    setattr(Guess, f"__{_name}__", _guess)
for _name in ("eq", "ne", "bool", "contains"):
    setattr(Guess, f"__{_name}__", _yes)

_done: list[str] = []
"""The operations of this run, each as JSON."""
_sent: list[str] = []
"""Those of the run before, whose results are there."""
_results: list[dict[str, Any]] = []
_known: set[int] = set()
"""The operations that are the same as in the run before, up to the first that isn't."""


def record(kind: str, *operands: Any) -> Any:
    """Record an operation on the program. Returns its result if that is known, otherwise a `Remote` in its place."""
    index = len(_done)
    _done.append(json.dumps([kind, *map(_operand, operands)]))
    if len(_known) == index < len(_sent) and _done[index] in (_sent[index], _with_results(_sent[index])):
        _known.add(index)
    if index not in _known:
        if index - len(_known) >= MOST_UNKNOWN:
            raise TooFarAheadError
        return Remote(index, known=False)
    result = _results[index]
    if "raised" in result:
        raise _exception(result)
    for given, after in zip(operands[1] if kind == "call" else (), result.get("after", ()), strict=False):
        _replace(given, after)
    return decode(result["value"]) if "value" in result else Remote(index, known=True)


def _with_results(sent: str) -> str:
    """An operation that was sent before the results of earlier ones were known, as it is written with them."""
    kind, *operands = json.loads(sent)
    return json.dumps([kind, *map(_with_result, operands)])


def _with_result(operand: dict[str, Any]) -> dict[str, Any]:
    ((form, content),) = operand.items()
    if form == "result" and content in _known and "value" in _results[content]:
        return {"value": _results[content]["value"]}
    if form in ("items", "tuple"):
        parts = [_with_result(item) for item in content]
        if all("value" in part for part in parts):
            values = [part["value"] for part in parts]
            return {"value": values if form == "items" else {"t": values}}
        return {form: parts}
    if form == "pairs":
        pairs = [[_with_result(key), _with_result(item)] for key, item in content]
        if all("value" in part for pair in pairs for part in pair):
            return {"value": {"d": [[key["value"], item["value"]] for key, item in pairs]}}
        return {form: pairs}
    return operand


def _operand(value: Any) -> dict[str, Any]:
    if isinstance(value, Remote):
        return {"result": value._index}
    if isinstance(value, Guess):
        raise ResultNeededError
    name = getattr(value, "__name__", "")
    if callable(value) and getattr(builtins, name, None) is value:
        return {"builtin": name}
    if not _holds_remote(value):  # `encode` would ask the program for an attribute `tolist`.
        with contextlib.suppress(TypeError):
            return {"value": encode(value)}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "items": [_operand(item) for item in value]}
    if isinstance(value, dict):
        return {"pairs": [[_operand(key), _operand(item)] for key, item in value.items()]}
    raise InvalidTestError(f"a {type(value).__name__} can't be passed to the program: only plain data can")


def _holds_remote(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_remote(key) or _holds_remote(item) for key, item in value.items())
    several = isinstance(value, list | tuple | set | frozenset)
    return isinstance(value, Remote | Guess) or (several and any(map(_holds_remote, value)))


def _replace(given: Any, after: Any) -> None:
    """Give a container that was passed the content that the program left in it."""
    if after is None or not isinstance(given, list | dict | set):
        return
    changed = decode(after)
    given.clear()
    if isinstance(given, list):
        given.extend(changed)
    else:
        given.update(changed)


def _exception(result: dict[str, Any]) -> Exception:
    """The exception that the program raised, by its builtin type."""
    kind = getattr(builtins, str(result["raised"]), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(str(result.get("message", "")))
        except TypeError:  # UnicodeDecodeError and its kind take more arguments
            pass
    return RuntimeError(str(result.get("message", "")))


class Names(dict[str, Any]):
    """The names of the statements: their own, the program's, builtins, and those of the usual standard modules."""

    def __init__(self, tested: list[str]) -> None:
        super().__init__(__name__="__main__", __settle__=_settle)
        self._tested = tested
        self._remote: dict[str, Any] = {}

    def __missing__(self, name: str) -> Any:
        if name in self._tested:
            if name not in self._remote:
                self._remote[name] = record("name", name)
            return self._remote[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        found = standard_name(name)
        if found is None:
            raise NameError(f"name {name!r} is not defined")
        return found


def standard_name(name: str) -> Any:
    """What a name means that a test uses without defining it: a module, or a name of the usual standard modules."""
    if name in STARRED or name in ALIASES or name == "numpy":
        try:
            return importlib.import_module(ALIASES.get(name, name))
        except ImportError:
            return None
    for module in map(importlib.import_module, STARRED):
        if name in getattr(module, "__all__", vars(module)):
            return getattr(module, name)
    return None


class _AheadOfResults(ast.NodeTransformer):
    """Puts each assert into `try: assert …; except BaseException: __settle__()`, so that one whose results aren't known
    yet counts as passed and the next ones ask for theirs in the same run."""

    def visit_Assert(self, node: ast.Assert) -> ast.Try:
        settle = ast.Expr(ast.Call(ast.Name("__settle__", ast.Load()), [], []))
        handler = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), None, [settle])
        return ast.Try([node], [handler], [], [])


def _settle() -> None:
    """Raise what an assert raised, if all results that it can depend on are known."""
    error = sys.exc_info()[1]
    if len(_known) == len(_done) or isinstance(error, TooFarAheadError | InvalidTestError):
        raise


def outcome(statements: str, tested: list[str]) -> dict[str, Any]:
    """Run the statements as far as the results go."""
    random.seed(0)
    verdict: dict[str, Any] = {"passed": True}
    try:
        tree = ast.fix_missing_locations(_AheadOfResults().visit(ast.parse(statements)))
        code = compile(tree, "assert_case", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return {"failed": type(error).__name__, "message": str(error), "invalid": True}
    try:
        exec(code, Names(tested))
    except (ResultNeededError, TooFarAheadError):
        verdict = {"failed": "ResultNeeded", "message": ""}
    except InvalidTestError as error:
        return {"failed": "InvalidTestError", "message": str(error), "invalid": True}
    except BaseException as error:  # noqa: BLE001 - SystemExit as well: an assert that wasn't reached isn't passed
        verdict = {"failed": type(error).__name__, "message": str(error)[:500]}
    # However it ended: without all the results that is no verdict.
    return verdict if len(_known) == len(_done) else {"operations": [json.loads(text) for text in _done]}


def main() -> None:
    """Answer one request. The statements' own output goes nowhere."""
    request = json.load(sys.stdin)
    _sent.extend(map(json.dumps, request["operations"]))
    _results.extend(request["results"])
    out, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps(outcome(request["statements"], request["tested"])), file=out)


if __name__ == "__main__":
    main()
