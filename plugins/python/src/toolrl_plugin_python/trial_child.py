"""What runs behind the wall for a case: the program or its test, each in its own process with a copy of this file.

A line is a nonce, which the line that answers it repeats, the kind of the message, and the message as JSON:

    to the program   NONCE {"load": source}                                  → loaded {}
                     NONCE {"call": name, "args": [...], "kwargs": {...}}    → value {"value": ..., "args": [...]}
                                                          or raised {"raised": [class names], "message": text}
    to the test      NONCE test {"test": source, "names": [...]}             the names that are the program's
    from the test    NONCE call …, which the program's answer follows, or NONCE ended {"why": text}
                     NONCE verdict {"verdict": "passed" | "failed" | "error" | "unfit", "detail": text}

The program knows arguments and nothing else: what is expected of it stands in another process. It may take its own one
over and answer what it likes, and that is a value like any other. `args` are the arguments as they are after the call,
as a function may change a list that it was given, and null for those that it left alone.

The test gets copies of what the program returned, of plain types: no class, no function, no object with a say in its
own comparison. Subclasses become what they derive from, arrays lists, iterators what they give.
"""

from __future__ import annotations

import builtins
import importlib
import itertools
import json
import os
import sys
import types
from collections import deque
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import IO, Any

MODULES = ("math", "cmath", "re", "sys", "random", "itertools", "functools", "collections", "string", "json",
           "datetime", "time", "copy", "heapq", "bisect", "operator", "statistics", "decimal", "fractions")  # fmt: skip
"""What a test may use without importing it, as the programs that tests were written for import it."""
LONGEST_ITERATOR = 10_000
STARRED = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
           "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing")  # fmt: skip
"""Names of these are there without an import, as solutions of programming sites expect it."""
_WORD = 1 << 63


def encode(value: Any) -> Any:
    """What JSON can hold. Raises TypeError for what is no data."""
    if value is None or isinstance(value, bool):
        return value
    for kind, as_json in _ENCODERS:
        if isinstance(value, kind):
            return as_json(value)
    if hasattr(value, "tolist"):
        return encode(value.tolist())
    raise TypeError(f"a {type(value).__name__} is no plain value")


def _int(value: int) -> Any:
    value = int(value)
    return value if -_WORD <= value < _WORD else {"i": hex(value)}


def _many(tag: str) -> Any:
    return lambda value: {tag: [encode(item) for item in value]}


def _iterator(value: Iterator[Any]) -> Any:
    items = list(itertools.islice(value, LONGEST_ITERATOR + 1))
    if len(items) > LONGEST_ITERATOR:
        raise TypeError(f"an iterator of more than {LONGEST_ITERATOR} items is no plain value")
    return {"it": [encode(item) for item in items]}


_ENCODERS: tuple[tuple[Any, Any], ...] = (
    (int, _int),
    (float, float),
    (str, lambda value: str.__str__(value)),
    (list, lambda value: [encode(item) for item in value]),
    (tuple, _many("t")),
    (frozenset, _many("fs")),
    (set, _many("s")),
    (dict, lambda value: {"d": [[encode(key), encode(item)] for key, item in value.items()]}),
    ((bytes, bytearray), lambda value: {"b": bytes(value).hex()}),
    (complex, lambda value: {"c": [value.real, value.imag]}),
    (Decimal, lambda value: {"de": str(value)}),
    (Fraction, lambda value: {"fr": [_int(value.numerator), _int(value.denominator)]}),
    (deque, _many("dq")),
    (range, lambda value: {"r": [_int(value.start), _int(value.stop), _int(value.step)]}),
    (KeysView, _many("s")),
    ((ValuesView, ItemsView), lambda value: [encode(item) for item in value]),
    (Iterator, _iterator),
)

_DECODERS: dict[str, Any] = {
    "i": lambda given: int(given, 16),
    "t": lambda given: tuple(decode(item) for item in given),
    "s": lambda given: {decode(item) for item in given},
    "fs": lambda given: frozenset(decode(item) for item in given),
    "d": lambda given: {decode(key): decode(item) for key, item in given},
    "b": bytes.fromhex,
    "c": lambda given: complex(*given),
    "de": Decimal,
    "fr": lambda given: Fraction(*(decode(part) for part in given)),
    "dq": lambda given: deque(decode(item) for item in given),
    "r": lambda given: range(*(decode(part) for part in given)),
    "it": lambda given: iter([decode(item) for item in given]),
}


def decode(given: Any) -> Any:
    """The value again, of plain types only. Raises ValueError or TypeError for what `encode` doesn't give."""
    if isinstance(given, list):
        return [decode(item) for item in given]
    if not isinstance(given, dict):
        return given
    if len(given) != 1:
        raise ValueError("no value")
    ((tag, content),) = given.items()
    if tag not in _DECODERS:
        raise ValueError("no value")
    return _DECODERS[tag](content)


def dumps(message: Any) -> bytes:
    """A message as one line."""
    return json.dumps(message).encode("ascii") + b"\n"


def frame(nonce: bytes, kind: str, message: dict[str, Any]) -> bytes:
    """An answer as a line."""
    return b"%b %b %b" % (nonce, kind.encode(), dumps(message))


def take_streams() -> tuple[IO[bytes], int]:
    """Standard input and output for messages alone: what the program itself prints or reads goes nowhere."""
    inward, outward = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    return inward, outward


def write(outward: int, line: bytes) -> None:
    """All of it."""
    while line:
        line = line[os.write(outward, line) :]


class Program:
    """The program as a module of its own."""

    def __init__(self, source: str) -> None:
        module = types.ModuleType("solution")
        sys.modules["solution"] = module
        self.names = vars(module)
        for name in STARRED:
            other = importlib.import_module(name)
            public = getattr(other, "__all__", [it for it in vars(other) if not it.startswith("_")])
            self.names.update((it, getattr(other, it)) for it in public if hasattr(other, it))
        self.names.update((name, sys.modules[name]) for name in STARRED if name not in ("builtins", "typing"))
        self._given = dict(self.names)
        exec(compile(source, "solution.py", "exec"), self.names)

    def function(self, name: str) -> Any:
        """What the program defines under this name: a function, or a method of its class `Solution`."""
        if name in self.names and (name not in self._given or self.names[name] is not self._given[name]):
            return self.names[name]
        solution = self.names.get("Solution")
        if solution is not None and hasattr(solution, name):
            return getattr(solution(), name)
        raise NameError(f"the program defines no {name!r}")


def raised(error: BaseException) -> tuple[str, dict[str, Any]]:
    """An exception as data: its classes, the nearest first, and its text."""
    names = [it.__name__ for it in type(error).__mro__ if it.__module__ == "builtins"]
    try:
        text = str(error)[:500]
    except BaseException:  # noqa: BLE001 - the program's own class
        text = ""
    return "raised", {"raised": names, "message": text}


def answer(state: dict[str, Any], request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What a request comes to: the kind of the answer, and the answer."""
    try:
        if "load" in request:
            state["program"] = Program(request["load"])
            return "loaded", {}
        args = [decode(item) for item in request["args"]]
        kwargs = {key: decode(item) for key, item in request["kwargs"].items()}
        value = state["program"].function(request["call"])(*args, **kwargs)
        after = [encode(item) for item in args]
        changed = [new if new != old else None for old, new in zip(request["args"], after, strict=True)]
        return "value", {"value": encode(value), "args": changed}
    except BaseException as error:  # noqa: BLE001 - SystemExit of the program, too
        return raised(error)


def serve() -> None:
    """Load a program and call its functions until the run hangs up."""
    inward, outward = take_streams()
    state: dict[str, Any] = {}
    process = os.getpid()
    for line in inward:
        nonce, _, request = line.partition(b" ")
        reply = frame(nonce, *answer(state, json.loads(request)))
        if os.getpid() != process:  # a child that the program forked has come back here
            os._exit(0)
        write(outward, reply)


class StopTest(BaseException):
    """A test that ends here, with this verdict whatever it catches."""


class OfProgramError(Exception):
    """Mixed into what the program raised, which distinguishes it from what the test raises itself."""


class Wire:
    """The line to the program."""

    def __init__(self) -> None:
        self.broken: tuple[str, str] | None = None
        """The verdict, where there is no going on."""
        self.calls = 0
        """Of the program's functions, with arguments that could be handed over."""
        self._nonce = b""
        self._inward, self._outward = take_streams()

    def receive(self) -> tuple[bytes, Any]:
        line = self._inward.readline()
        if not line:
            raise self.stop("error", "the run hung up")
        self._nonce, kind, message = line.split(b" ", 2)
        return kind, json.loads(message)

    def stop(self, verdict: str, detail: str) -> StopTest:
        """A test may catch everything; that must not make it pass."""
        self.broken = (verdict, detail[:300])
        return StopTest(detail)

    def send(self, kind: str, message: dict[str, Any]) -> None:
        write(self._outward, frame(self._nonce, kind, message))

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the program's function returns or raises; lists and so on that it changed are changed here, too."""
        try:
            before = [encode(item) for item in args]
            given = {key: encode(item) for key, item in kwargs.items()}
            self.send("call", {"call": name, "args": before, "kwargs": given})
        except TypeError as error:
            raise self.stop("unfit", f"an argument of {name!r} can't be handed to the program: {error}") from None
        except RecursionError:
            # What is nested so deeply, the program gave.
            raise self.stop("error", f"an argument of {name!r} is nested too deeply") from None
        self.calls += 1
        try:
            kind, reply = self.receive()
            if kind == b"ended":
                raise self.stop("error", reply["why"])
            failed = _exception(reply) if kind == b"raised" else None
            if failed is None:
                pairs = zip(args, reply["args"], strict=True)
                changes = [(item, decode(new)) for item, new in pairs if new is not None]
                value = decode(reply["value"])
        except Exception as wrong:  # noqa: BLE001 - the program wrote its own answer
            raise self.stop("error", f"the program's answer can't be read: {wrong}") from None
        if failed is not None:
            raise failed
        for item, new in changes:
            _change(item, new)
        return value


def _exception(reply: dict[str, Any]) -> Exception:
    """The built-in exception that is nearest to what the program raised."""
    for name in reply["raised"]:
        # As in a generator: where `map` or `all` calls the function, it would be the end of what is tested.
        name = "RuntimeError" if name in ("StopIteration", "StopAsyncIteration") else name
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                error: Exception = type(kind.__name__, (kind, OfProgramError), {})(str(reply["message"]))
            except TypeError:  # UnicodeDecodeError and its like take more than a text
                continue
            return error
    return OfProgramError(f"{reply['raised'][:1]}: {reply['message']}")


def _change(item: Any, new: Any) -> None:
    """Make a container what the program made of it."""
    if isinstance(item, list | bytearray) and isinstance(new, list | bytes):
        item[:] = new
    elif isinstance(item, set | dict) and type(item) is type(new):
        item.clear()
        item.update(new)


def run(wire: Wire, test: str, names: list[str]) -> tuple[str, str]:
    """The verdict on a test, and a reason."""
    scope: dict[str, Any] = {"__name__": "__test__"}
    for module in MODULES:
        scope[module] = importlib.import_module(module)
    for name in names:
        scope[name] = _remote(wire, name)
    try:
        code = compile(test, "test.py", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "unfit", f"{type(error).__name__}: {error}"[:300]
    try:
        exec(code, scope)
    except OfProgramError as error:
        found = "error", f"{type(error).__name__}: {error}"[:300]
    except AssertionError as error:
        found = "failed", str(error)[:300]
    except ModuleNotFoundError as error:
        found = "unfit", f"{type(error).__name__}: {error}"[:300]
    except BaseException as error:  # noqa: BLE001 - whatever ends a test, it isn't passed
        found = "error", f"{type(error).__name__}: {error}"[:300]
    else:
        found = ("passed", "") if wire.calls else ("unfit", f"it calls none of {', '.join(names)}"[:300])
    return wire.broken or found


def _remote(wire: Wire, name: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        return wire.call(name, args, kwargs)

    function.__name__ = name
    return function


def main() -> None:
    """Run one test."""
    wire = Wire()
    _, request = wire.receive()
    verdict, detail = run(wire, request["test"], request["names"])
    wire.send("verdict", {"verdict": verdict, "detail": detail})


if __name__ == "__main__":
    serve() if sys.argv[1] == "program" else main()
