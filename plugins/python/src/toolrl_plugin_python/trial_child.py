"""What runs behind the wall for a call of a function: the program, in a process with a copy of this file.

Standard input is one line of JSON, `{"source", "function", "args", "kwargs"}`; the answer is one on standard output,
`{"value": …}` or `{"raised": name, "message": text}`. What is expected stands in another process. The program may take
this one over and answer what it likes, and that is a value like any other.

Values cross as copies of plain types: no class, no function, no object with a say in its own comparison. Subclasses
become what they derive from, arrays lists.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from typing import Any

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
)

_DECODERS: dict[str, Any] = {
    "i": lambda given: int(given, 16),
    "t": lambda given: tuple(decode(item) for item in given),
    "s": lambda given: {decode(item) for item in given},
    "fs": lambda given: frozenset(decode(item) for item in given),
    "d": lambda given: {decode(key): decode(item) for key, item in given},
    "b": bytes.fromhex,
    "c": lambda given: complex(*given),
}


def decode(given: Any) -> Any:
    """The value again, of plain types only. Raises ValueError or TypeError for what `encode` doesn't give."""
    if isinstance(given, list):
        return [decode(item) for item in given]
    if not isinstance(given, dict):
        return given
    tag, content = next(iter(given.items()), ("", None))
    if len(given) != 1 or tag not in _DECODERS:
        raise ValueError("no value")
    return _DECODERS[tag](content)


def load(source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the program as a module of its own: its names, and those that were there before."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    names = vars(module)
    exec("\n".join(f"from {name} import *" for name in STARRED), names)
    names.update((name, importlib.import_module(name)) for name in STARRED if name not in ("builtins", "typing"))
    given = dict(names)
    exec(compile(source, "solution.py", "exec"), names)
    return names, given


def function_of(source: str, name: str) -> Any:
    """What the program defines under this name: a function, or a method of its class `Solution`."""
    names, given = load(source)
    if name in names and (name not in given or names[name] is not given[name]):
        return names[name]
    if hasattr(names.get("Solution"), name):
        return getattr(names["Solution"](), name)
    raise NameError(f"the program defines no {name!r}")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the function returns or raises."""
    try:
        function = function_of(request["source"], request["function"])
        args = [decode(item) for item in request["args"]]
        kwargs = {key: decode(item) for key, item in request["kwargs"].items()}
        return {"value": encode(function(*args, **kwargs))}
    except BaseException as error:  # noqa: BLE001 - SystemExit of the program, too
        try:
            text = str(error)[:500]
        except BaseException:  # noqa: BLE001 - the program's own class
            text = ""
        return {"raised": type(error).__name__, "message": text}


def main() -> None:
    """Answer one request. What the program itself prints or reads goes nowhere."""
    inward, outward = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    process = os.getpid()
    with os.fdopen(inward, "rb") as file:
        request = json.load(file)
    line = json.dumps(answer(request)).encode("ascii")
    # A child that the program forked comes back here as well.
    while line and os.getpid() == process:
        line = line[os.write(outward, line) :]
    os._exit(0)


if __name__ == "__main__":
    main()
