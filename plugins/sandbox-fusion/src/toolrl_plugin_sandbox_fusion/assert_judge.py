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
MOST_UNKNOWN = 1000
"""Maximum number of operations ahead of the known results: a loop that waits for one of them has no end."""


class ResultNeededError(BaseException):
    """Ends a run of the statements: what they do next depends on a result that isn't known. No `except` of theirs
    catches it."""


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

    # An unknown result is taken to be as the test wants it, so that a loop of asserts asks for all results at once. The
    # statements run again with the real ones.
    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self is other if self._known else True

    def __hash__(self) -> int:
        self._need()
        return hash(self._index)

    def _need(self) -> None:
        if not self._known:
            raise ResultNeededError

    def _known_result(self, kind: str, *operands: Any) -> Any:
        self._need()
        result = record(kind, self, *operands)
        if isinstance(result, Remote):
            result._need()
        return result


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
    if len(_known) == index < len(_sent) and _sent[index] == _done[index]:
        _known.add(index)
    if index not in _known:
        if index - len(_known) >= MOST_UNKNOWN:
            raise ResultNeededError
        return Remote(index, known=False)
    result = _results[index]
    if "raised" in result:
        raise _exception(result)
    for given, after in zip(operands[1] if kind == "call" else (), result.get("after", ()), strict=False):
        _replace(given, after)
    return decode(result["value"]) if "value" in result else Remote(index, known=True)


def _operand(value: Any) -> dict[str, Any]:
    if isinstance(value, Remote):
        return {"result": value._index}
    if callable(value) and getattr(builtins, getattr(value, "__name__", ""), None) is value:
        return {"builtin": value.__name__}
    try:
        return {"value": encode(value)}
    except TypeError:
        pass
    if isinstance(value, list):
        return {"items": [_operand(item) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"named": {key: _operand(item) for key, item in value.items()}}
    raise InvalidTestError(f"a {type(value).__name__} can't be passed to the program: only plain data can")


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
        super().__init__(__name__="__main__")
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


def outcome(statements: str, tested: list[str]) -> dict[str, Any]:
    """Run the statements as far as the results go."""
    random.seed(0)
    verdict: dict[str, Any] = {"passed": True}
    try:
        code = compile(statements, "assert_case", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return {"failed": type(error).__name__, "message": str(error), "invalid": True}
    try:
        exec(code, Names(tested))
    except ResultNeededError:
        verdict = {"failed": "ResultNeededError", "message": ""}
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
