"""Runs a test behind a wall of its own, away from the program that it tests. A line is a nonce, which the next line out
repeats, the kind of the message, and the message as JSON:

    in   test {"test": source, "names": [...]}       the names that are the program's
    out  call {"call": name, "args": [...], "kwargs": {...}}
    in   value {"value": ..., "args": [...]}  or  raised {"raised": [class names], "message": text}
         or  ended {"why": text}
    out  verdict {"verdict": "passed" | "failed" | "error" | "unfit", "detail": text}

The test sees copies of what the program returned, of plain types. So an object of the program's has no say in an
assertion, and nothing that the program does in its own process reaches this one.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
from typing import Any

sys.path.insert(0, "helpers")  # below the working folder, beside this file
import values  # type: ignore[import-not-found]

del sys.path[0]


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
        self._inward, self._outward = os.fdopen(os.dup(0), "rb"), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(nothing, number)

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
        data = b"%b %b %b" % (self._nonce, kind.encode(), values.dumps(message))
        while data:
            data = data[os.write(self._outward, data) :]

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the program's function returns or raises; lists and so on that it changed are changed here, too."""
        try:
            before = [values.encode(item) for item in args]
            given = {key: values.encode(item) for key, item in kwargs.items()}
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
                changes = [(item, values.decode(new)) for item, new in pairs if new is not None]
                value = values.decode(reply["value"])
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
    for module in values.MODULES:
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
    main()
