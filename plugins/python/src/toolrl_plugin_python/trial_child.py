"""What runs behind the wall for a call of a function: the program, in a process with a copy of this file.

Standard input is one line of JSON, `{"source", "function", "args", "kwargs"}`; the answer is one on standard output,
`{"value": …}` or `{"raised": name, "message": text}`. What is expected stands in another process. The program may take
this one over and answer what it likes, and that is a value like any other.

Values cross as `toolrl_common.plain_values` has it, whose text comes before this file's in the sandbox.
"""

import contextlib
import importlib
import json
import os
import sys
import types
from typing import Any

# In the sandbox both are defined above.
with contextlib.suppress(ImportError):
    from toolrl_common.plain_values import decode, encode

STARRED = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
           "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing")  # fmt: skip
"""Names of these are there without an import, as solutions of programming sites expect it."""


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
