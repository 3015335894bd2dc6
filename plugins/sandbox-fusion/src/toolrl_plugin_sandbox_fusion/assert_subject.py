"""Runs the judged program of an `assert_case`: replays operations on its names, and answers with their results.

Standard input is JSON, `{"source": text, "operations": [...]}`; standard output is one line, a list with a result for
each operation: `{"value": …}`, `{"object": type name}` for a value that can't cross, `{"raised": type name, "message":
text}`. The statements that judge the results run in another sandbox (assert_judge.py), so the program may take this
process over and answer as it likes: an answer is a value, and it has to be the right one.
"""

import builtins
import contextlib
import json
import os
import sys
import types
from typing import Any

# In the sandbox both are defined above.
with contextlib.suppress(ImportError):
    from toolrl_common.plain_values import decode, encode

LONGEST_ITERATION = 100_000


class Program:
    """The program's namespace, and the results of the operations so far."""

    def __init__(self, source: str) -> None:
        module = types.ModuleType("solution")
        sys.modules["solution"] = module
        self._names = vars(module)
        self._results: list[Any] = []
        exec(compile(source, "solution.py", "exec"), self._names)

    def answer(self, operation: list[Any]) -> dict[str, Any]:
        """Do one operation. The results of later ones may refer to its value."""
        self._results.append(None)
        kind, *operands = operation
        given = [self._operand(item) for item in operands]
        args = given[1] if kind == "call" else []
        before = [container(item) for item in args]
        result = self._results[-1] = getattr(self, f"_{kind}")(*given)
        said = crossing(result)
        # A test may look at a list that it passed and the program changed.
        after = [container(item) for item in args]
        if after != before:
            said["after"] = after
        return said

    def _operand(self, given: dict[str, Any]) -> Any:
        if "result" in given:
            return self._results[given["result"]]
        if "builtin" in given:
            return getattr(builtins, given["builtin"])
        if "items" in given:
            return [self._operand(item) for item in given["items"]]
        if "tuple" in given:
            return tuple(self._operand(item) for item in given["tuple"])
        if "pairs" in given:
            return {self._operand(key): self._operand(item) for key, item in given["pairs"]}
        return decode(given["value"])

    def _name(self, name: str) -> Any:
        if name in self._names:
            return self._names[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise NameError(f"the program defines no {name!r}")

    def _call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    def _attribute(self, owner: Any, name: str) -> Any:
        return getattr(owner, name)

    def _item(self, owner: Any, key: Any) -> Any:
        return owner[key]

    def _set_attribute(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)

    def _len(self, owner: Any) -> Any:
        return len(owner)

    def _str(self, owner: Any) -> Any:
        return str(owner)

    def _repr(self, owner: Any) -> Any:
        return repr(owner)

    def _list(self, owner: Any) -> Any:
        items = []
        for item in owner:
            items.append(item)
            if len(items) > LONGEST_ITERATION:
                raise OverflowError(f"more than {LONGEST_ITERATION} items")
        return items


def crossing(value: Any) -> dict[str, Any]:
    """A value as the judge gets it."""
    try:
        return {"value": encode(value)}
    except TypeError:
        return {"object": type(value).__name__}


def container(value: Any) -> Any:
    """The content of a container that can change, encoded; None for any other value."""
    if not isinstance(value, (list, dict, set)):
        return None
    try:
        return encode(value)
    except TypeError:
        return None


def answers(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of all operations; a program that can't be loaded raises in each."""
    results: list[dict[str, Any]] = []
    try:
        program = Program(request["source"])
    except BaseException as error:  # noqa: BLE001 - SystemExit of the program as well
        return [raised(error)] * len(request["operations"])
    for operation in request["operations"]:
        try:
            results.append(program.answer(operation))
        except BaseException as error:  # noqa: BLE001
            results.append(raised(error))
    return results


def raised(error: BaseException) -> dict[str, Any]:
    """An exception, by its builtin type: a test may expect a ValueError, and get a subclass of it."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    try:
        text = f"{type(error).__name__}: {error}"[:500]
    except BaseException:  # noqa: BLE001 - the program's own class
        text = type(error).__name__
    return {"raised": kind, "message": text}


def main() -> None:
    """Answer one request. Anything that the program prints or reads itself goes nowhere."""
    inward, outward = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    process = os.getpid()
    with os.fdopen(inward, "rb") as file:
        request = json.load(file)
    line = json.dumps(answers(request)).encode("ascii")
    # A child that the program forked arrives here as well.
    while line and os.getpid() == process:
        line = line[os.write(outward, line) :]
    os._exit(0)


if __name__ == "__main__":
    main()
