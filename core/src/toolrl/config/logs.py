"""Masks the values of a run's `${VAR}`s in log records, warnings and uncaught exceptions.

A library's error may quote an address with a key. In toolrl's own records, which may quote a tool, control characters
are made visible.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from toolrl.terminal_text import visible

Keep = Callable[[int, str, str], None]
"""Takes the level, the logger's name and the text of a record."""


@contextmanager
def masked_logs(hide: Callable[[str], str], keep: Keep | None = None) -> Iterator[None]:
    """While this is entered, `hide` is applied to every log record of this process, tracebacks included, to warnings,
    and to exceptions that nothing catches, in a thread or while an object is deleted. `keep` gets them all from INFO
    on, also of a library whose logger has handlers of its own."""
    before = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        _mask(record, hide)
        if keep is not None and isinstance(record.levelno, int) and record.levelno >= logging.INFO:
            keep(record.levelno, record.name, _text(record))
        return record

    def report(what: str, error: BaseException) -> None:
        text = hide(f"{what}:\n{''.join(traceback.format_exception(error))}")
        print(text, end="", file=sys.stderr)
        if keep is not None:
            keep(logging.ERROR, "uncaught", text)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            report(f"Exception in thread {args.thread.name if args.thread else '?'}", args.exc_value)

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        if args.exc_value is not None:
            report(f"{args.err_msg or 'Exception ignored in'} {args.object!r}", args.exc_value)

    shown = warnings.formatwarning

    def formatted(*args: Any, **kwargs: Any) -> str:
        text = hide(shown(*args, **kwargs))
        if keep is not None:
            keep(logging.WARNING, "py.warnings", text)
        return text

    logging.setLogRecordFactory(make)
    with (
        nullcontext() if hide is str else _replaced(threading, "excepthook", in_thread),
        nullcontext() if hide is str else _replaced(sys, "unraisablehook", unraisable),
        _replaced(warnings, "formatwarning", formatted),
    ):
        try:
            yield
        finally:
            if logging.getLogRecordFactory() is make:
                logging.setLogRecordFactory(before)


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Another value of a module's attribute for a while; one that was set meanwhile stays."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        if getattr(module, name) is value:
            setattr(module, name, before)


def _text(record: logging.LogRecord) -> str:
    """A record's message and traceback."""
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that don't fit
        text = str(record.msg)
    return f"{text}\n{record.exc_text}" if record.exc_text else text


def _mask(record: logging.LogRecord, hide: Callable[[str], str]) -> None:
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that don't fit: the record's handler reports it
        return
    shown = visible if record.name.partition(".")[0].startswith("toolrl") else str
    hidden = shown(hide(text))
    if hidden != text:
        record.msg, record.args = hidden, ()
    if record.exc_info and record.exc_info[0] is not None:
        # What handlers print, where it is set.
        record.exc_text = shown(hide(logging.Formatter().formatException(record.exc_info)))
