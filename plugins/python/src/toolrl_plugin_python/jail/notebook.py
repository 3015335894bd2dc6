"""An interpreter that runs cells as a notebook does, inside the walls.

What a cell prints, the value of its last expression and the traceback of what it raised all go to one pipe, in the
order in which they come. A cell's end is reported on the channel, as one line that begins with the cell's token. All of
this is in the program's hands and can be forged by it: the run believes none of it further than that.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import codecs
import io
import json
import linecache
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from toolrl_plugin_python.jail import cell
from toolrl_plugin_python.jail.settings import JobLimits, Settings
from toolrl_plugin_python.jail.walls import JobPlace

_MOST_FRAMES = 12
_FIRST_FRAMES = 4


class _Frames(traceback.StackSummary):
    """Lines of a traceback, with the middle of a long one left out."""

    def format(self, **options: Any) -> list[str]:
        lines = super().format(**options)
        left_out = len(lines) - _MOST_FRAMES
        if left_out <= 0:
            return lines
        note = f"  [{left_out} more frames]\n"
        return [*lines[:_FIRST_FRAMES], note, *lines[_FIRST_FRAMES + left_out :]]


class Shown:
    """Writes to stderr."""

    def __init__(self, scratch: str, packages: Sequence[str]) -> None:
        self._scratch = os.path.join(scratch, "")  # noqa: PTH118
        self._packages = packages

    def exception(self, error: BaseException) -> None:
        """A traceback, and for a missing module what can be imported here."""
        if isinstance(error, MemoryError):
            # What filled the memory is mostly held by the frames.
            with suppress(Exception):
                traceback.clear_frames(error.__traceback__)
        try:
            text = "".join(self._trimmed(error).format())
        except BaseException as second:  # noqa: BLE001 - a hostile __str__, no memory left
            text = f"{type(error).__name__} (it can't be shown: {type(second).__name__})\n"
        _write(text + self._hint(error))

    def _trimmed(self, error: BaseException) -> traceback.TracebackException:
        whole = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
        waiting, seen = [whole], 0
        while waiting and seen < 100:
            part = waiting.pop()
            seen += 1
            part.stack = _Frames(frame for frame in part.stack if self._is_own(frame.filename))
            waiting += [it for it in (part.__cause__, part.__context__, *(part.exceptions or ())) if it is not None]
        return whole

    def _is_own(self, filename: str) -> bool:
        return filename.startswith(("<code>", "<cell ", self._scratch))

    def _hint(self, error: BaseException) -> str:
        if not isinstance(error, ModuleNotFoundError):
            return ""
        more = f" and these packages: {', '.join(self._packages)}" if self._packages else ""
        return f"(There is the standard library{more}; nothing else can be installed.)\n"


def _write(text: str) -> None:
    """To stderr, in order with what was printed."""
    _flush([])
    with suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))


def run_interpreter(settings: Settings, limits: JobLimits, place: JobPlace) -> int:
    """What the first does: an interpreter in the walls, until it ends. The exit status is the interpreter's, 128 and
    the signal's number where one ended it."""
    child = cell.inside(settings, limits, place, lambda: serve(settings, place))
    status = os.waitstatus_to_exitcode(cell.wait_for(child))
    cell.end_others(settings, place)
    return status if status >= 0 else 128 - status


def serve(settings: Settings, place: JobPlace) -> None:
    """Run cells until the run hangs up."""
    channel = os.dup(cell.CHANNEL)
    cell.arrange([0, 1, 2, channel])
    _prepare(settings, place)
    notebook = Notebook(settings, place.scratch)
    os.write(3, b"ready\n")
    process = os.getpid()
    with open(3, "rb", closefd=False) as requests:
        for line in requests:
            request = json.loads(line)
            outcome = notebook.run(request)
            if os.getpid() != process:  # a child that the cell forked has come back here
                os._exit(0)
            os.write(3, f"{request['token']} {outcome}\n".encode(errors="replace"))


def _prepare(settings: Settings, place: JobPlace) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(HOME=place.scratch, PWD=place.scratch)
    if settings.mode != "namespaces":
        os.environ["TMPDIR"] = place.scratch
    sys.path[:] = ["", *settings.search_path]
    sys.argv[:] = [""]
    sys.dont_write_bytecode = True
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    numpy = sys.modules.get("numpy")
    if numpy is not None:  # `random` seeds itself anew after a fork, numpy's doesn't
        numpy.random.seed()
    for name in ("exit", "quit"):
        setattr(builtins, name, _exit)
    builtins.input = _no_input


def _exit(code: object = None) -> NoReturn:
    raise SystemExit(code)


def _no_input(prompt: object = "") -> NoReturn:
    raise EOFError("input() can't be used here: there is no one to answer. Put the values into the code.")


class Notebook:
    """The state between cells."""

    def __init__(self, settings: Settings, scratch: str) -> None:
        self._main = types.ModuleType("__main__")
        sys.modules["__main__"] = self._main
        self._cells = 0
        self._shown = Shown(scratch, settings.packages)

    def run(self, request: dict[str, Any]) -> str:
        """Run a cell. The outcome: `ok`, `exception NAME`, or `exit STATUS`."""
        self._cells += 1
        fresh = bool(request["fresh"])
        name = "<code>" if fresh else f"<cell {self._cells}>"
        source = request["code"]
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        streams = _streams()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self._outcome(source, name, fresh)
        finally:
            _flush(streams)

    def _outcome(self, source: str, name: str, fresh: bool) -> str:
        """Run, and show what was raised."""
        try:
            self._execute(source, name)
            if fresh:
                _finish()
        except SystemExit as error:
            return self._exit_outcome(error)
        except BaseException as error:  # noqa: BLE001 - whatever a cell raises is shown
            self._shown.exception(error)
            name = type(error).__name__  # which may be anything
            is_plain = name.isascii() and name.isidentifier() and len(name) <= 80
            return f"exception {name}" if is_plain else "exception"
        return "ok"

    def _execute(self, source: str, name: str) -> None:
        tree = ast.parse(source, name)
        last = tree.body[-1] if tree.body else None
        if not isinstance(last, ast.Expr):
            exec(compile(tree, name, "exec"), self._main.__dict__)
            return
        del tree.body[-1]
        exec(compile(tree, name, "exec"), self._main.__dict__)
        value = eval(compile(ast.Expression(last.value), name, "eval"), self._main.__dict__)
        if value is not None:
            print(repr(value))

    def _exit_outcome(self, error: SystemExit) -> str:
        if error.code is None or isinstance(error.code, int):
            return f"exit {int(error.code or 0) & 0xFF}"
        with suppress(Exception):
            print(error.code, file=sys.stderr)
        return "exit 1"


def _finish() -> None:
    """What the end of a script does: wait for threads, run what atexit holds."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()


def _streams() -> list[io.TextIOBase]:
    """New stdout and stderr on one buffer, so that what goes to them stays in order. A line goes out when it ends."""
    buffer = io.BufferedWriter(io.FileIO(1, "wb", closefd=False))
    made = []
    for _ in range(2):
        stream = io.TextIOWrapper(
            buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=True
        )
        made.append(stream)
    sys.stdout, sys.stderr = made
    sys.__stdout__, sys.__stderr__ = made  # type: ignore[misc]
    return list(made)


def _flush(streams: list[io.TextIOBase]) -> None:
    for stream in (sys.stdout, sys.stderr, *streams):
        with suppress(BaseException):
            stream.flush()


# Codecs that a cell may need when no more file can be opened.
codecs.lookup("utf-8")
