"""Runs a program behind the wall and calls its functions. A line in is a nonce and JSON; the line out repeats the
nonce, names the kind of the answer and gives it as JSON:

    NONCE {"load": source}                                  → NONCE loaded {}
    NONCE {"call": name, "args": [...], "kwargs": {...}}    → NONCE value {"value": ..., "args": [...]}
                                                            → NONCE raised {"raised": [class names], "message": text}

The program knows arguments and nothing else: what is expected of it stands in another process. It may take this one
over and answer what it likes, and that is a value like any other. `args` are the arguments as they are after the call,
as a function may change a list that it was given, and null for those that it left alone.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from typing import Any

sys.path.insert(0, "helpers")  # below the working folder, beside this file
import values  # type: ignore[import-not-found]

del sys.path[0]

STARRED = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
           "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing")  # fmt: skip
"""Names of these are there without an import, as solutions of programming sites expect it."""


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
        args = [values.decode(item) for item in request["args"]]
        kwargs = {key: values.decode(item) for key, item in request["kwargs"].items()}
        value = state["program"].function(request["call"])(*args, **kwargs)
        after = [values.encode(item) for item in args]
        changed = [new if new != old else None for old, new in zip(request["args"], after, strict=True)]
        return "value", {"value": values.encode(value), "args": changed}
    except BaseException as error:  # noqa: BLE001 - SystemExit of the program, too
        return raised(error)


def main() -> None:
    """Answer until the run hangs up."""
    inward, outward = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    # What the program prints or reads is not what is said here.
    for number in (0, 1):
        os.dup2(nothing, number)
    state: dict[str, Any] = {}
    process = os.getpid()
    for line in inward:
        nonce, _, request = line.partition(b" ")
        kind, said = answer(state, json.loads(request))
        reply = b"%b %b %b" % (nonce, kind.encode(), values.dumps(said))
        if os.getpid() != process:  # a child that the program forked has come back here
            os._exit(0)
        while reply:
            reply = reply[os.write(outward, reply) :]


if __name__ == "__main__":
    main()
