"""What the commands print: tables, JSON, errors. Plain text, so that starting a command costs nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from toolrl.errors import ConfigError, ToolrlError


class UsageError(ToolrlError):
    """A wrong command line. Exit status 2."""

    fault = "usage"
    exit_status = 2


class SystemCallError(ToolrlError):
    """An error of the operating system: a file that can't be written, a full disk, a host that can't be reached."""

    fault = "system"


_OF_TRAINING = ("torch", "transformers", "safetensors")


def readable(error: BaseException) -> BaseException:
    """The error itself; for one of the operating system or a missing torch, a ToolrlError with a hint."""
    if isinstance(error, ModuleNotFoundError) and error.name in _OF_TRAINING:
        return ToolrlError(
            f"this needs {error.name}, which isn't installed",
            hint="pip install 'toolrl[train]'. In a clone of toolrl: the install line of its README.md.",
        )
    if not isinstance(error, OSError):
        return error
    paths = [os.fsdecode(it) if isinstance(it, bytes) else str(it) for it in (error.filename, error.filename2) if it]
    message = error.strerror or f"{type(error).__name__}: {error}"
    hint = "`toolrl --debug …` shows where it comes from."
    return SystemCallError(str(message), where=" → ".join(paths) or None, hint=hint)


def print_json(value: Any) -> None:
    """A value as JSON on standard output; what JSON doesn't know becomes text."""
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()) -> str:
    """Rows as columns. The last column isn't padded, and its lines after the first stand under it."""
    lines = [list(row) for row in ([header] if header else [])] + [list(row) for row in rows]
    if not lines:
        return ""
    widths = [max(len(cell) for cell in column) for column in zip(*(row[:-1] for row in lines), strict=True)]
    indent = " " * (sum(widths) + 2 * len(widths))
    text = []
    for row in lines:
        start = "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
        text.append((start + row[-1].replace("\n", f"\n{indent}")).rstrip())
    return "\n".join(text)


def print_error(
    error: BaseException, *, json: bool = False, stream: IO[str] | None = None, hide: Callable[[str], str] = str
) -> None:
    """An error for a reader: the message, and below it what to do next. With `json`, an object on standard output.
    `hide` takes secrets out."""
    if json:
        print_json({"error": _hidden(error_facts(error), hide)})
        return
    from toolrl.terminal_text import visible  # Only on the way to an error.

    print(visible(hide("\n".join(_error_lines(error)))), file=stream or sys.stderr)


def _error_lines(error: BaseException) -> Iterator[str]:
    if not isinstance(error, ToolrlError):
        yield f"error: {type(error).__name__}: {error}"
        return
    where = f"{error.where}: " if error.where else ""
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        yield f"error: {where}{len(error.problems)} problems"
        yield from (_hanging(problem, "  ") for problem in error.problems)
    else:
        yield f"error: {where}{error.message}"
    if error.hint:
        yield _hanging(error.hint, "  → ")


def _hidden(facts: Mapping[str, Any], hide: Callable[[str], str]) -> dict[str, Any]:
    """Facts with every text hidden; before they become JSON, which writes some characters in another way."""
    return {
        key: [hide(item) for item in value] if isinstance(value, list) else hide(value) for key, value in facts.items()
    }


def error_facts(error: BaseException) -> dict[str, Any]:
    """An error as data: type, fault, message, and where and hint if there are any; a ConfigError's problems too."""
    if not isinstance(error, ToolrlError):
        return {"type": type(error).__name__, "fault": "toolrl", "message": str(error)}
    facts: dict[str, Any] = {"type": type(error).__name__, "fault": error.fault, "message": error.message}
    if error.where:
        facts["where"] = error.where
    if error.hint:
        facts["hint"] = error.hint
    if isinstance(error, ConfigError):
        facts["problems"] = error.problems
    return facts


def _hanging(text: str, mark: str) -> str:
    """Text after a mark, its further lines indented as far."""
    return mark + text.replace("\n", "\n" + " " * len(mark))
