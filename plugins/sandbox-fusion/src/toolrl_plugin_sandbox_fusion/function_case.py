"""Test cases that call a function: a program around the solution that reads arguments and prints the result.

Standard input holds the arguments, one JSON value a line. The solution runs as a module of its own, in which the names
of the usual standard modules are there without an import, as solutions of programming sites expect it. What it prints
itself goes to standard error, so that standard output holds the result alone. A function that isn't there, or raises,
ends the program with exit code 1.
"""

from __future__ import annotations

import json
from typing import Any

_PROGRAM = """
import importlib, json, sys, traceback, types

SOURCE = {source}
NAME = {name}
STARRED = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
           "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing")


def solution_module():
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    names = vars(module)
    for name in STARRED:
        other = importlib.import_module(name)
        public = getattr(other, "__all__", [n for n in vars(other) if not n.startswith("_")])
        names.update((n, getattr(other, n)) for n in public if hasattr(other, n))
    names.update((name, sys.modules[name]) for name in STARRED[:-2])
    given = dict(names)
    exec(compile(SOURCE, "solution.py", "exec"), names)
    return names, given


def function_of(names, given):
    if NAME in names and (NAME not in given or names[NAME] is not given[NAME]):
        return names[NAME]
    if "Solution" in names:
        return getattr(names["Solution"](), NAME)
    raise NameError("the solution has no function or method " + repr(NAME))


def main():
    out, sys.stdout = sys.stdout, sys.stderr
    arguments = [json.loads(line) for line in sys.stdin.read().split("\\n") if line.strip()]
    try:
        result = function_of(*solution_module())(*arguments)
        as_json = result is None or isinstance(result, (bool, dict, list, tuple))
        text = json.dumps(result, default=str) if as_json else str(result)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    print(text, file=out)


main()
"""


def program(source: str, function: str) -> str:
    """The program that calls `function` of the solution `source`."""
    return _PROGRAM.format(source=ascii(source), name=ascii(function)).lstrip()


def arguments_text(case: Any) -> str:
    """A case's input as the program reads it: a text as it is, a list as one argument a line, anything else as the
    only argument."""
    if isinstance(case, str):
        return case
    arguments = case if isinstance(case, list | tuple) else [] if case is None else [case]
    return "\n".join(json.dumps(argument, default=str) for argument in arguments)


def check_arguments(case: Any) -> None:
    """Raises ValueError for a text whose lines aren't JSON."""
    for line in case.split("\n") if isinstance(case, str) else ():
        if line.strip():
            json.loads(line)
