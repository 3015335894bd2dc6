"""What the model reads of a call: what was printed, and how it ended where that isn't plain."""

from __future__ import annotations

import signal

from toolrl.types import ToolResult
from toolrl_plugin_python.interpreter import CellOutcome
from toolrl_plugin_python.options import PythonOptions

STATE_LOST = "The interpreter was started anew: variables, imports and files of earlier calls are gone."
_SIGNALS = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGBUS: "a bus error",
    signal.SIGABRT: "an abort",
    signal.SIGFPE: "a floating point error in compiled code",
    signal.SIGILL: "an illegal instruction",
    signal.SIGSYS: "a system call that isn't allowed",
    signal.SIGXFSZ: "a file that grew too large",
}


def answer(outcome: CellOutcome, options: PythonOptions, *, state_lost: bool) -> ToolResult:
    """The result of a call. An exception of the code is a result like any other: the model shall read it."""
    notes = [note for note in (_note(outcome, options), STATE_LOST if state_lost else "") if note]
    printed = _printed(outcome)
    if not printed and not notes:
        printed = "(no output)"
    text = "\n".join(part for part in (printed, *(f"[{note}]" for note in notes)) if part)
    metrics = {"exception": float(outcome.kind == "exception"), "stopped": float(_error(outcome) is not None)}
    return ToolResult(text, error=_error(outcome), metrics=metrics)


def _printed(outcome: CellOutcome) -> str:
    # A cut may fall inside a character.
    head = outcome.head.decode("utf-8", errors="replace")
    if outcome.left_out:
        tail = outcome.tail.decode("utf-8", errors="replace")
        return f"{head}\n[{outcome.left_out} bytes left out]\n{tail}".rstrip("\n")
    return (head + outcome.tail.decode("utf-8", errors="replace")).rstrip("\n")


def _error(outcome: CellOutcome) -> str | None:
    """The kind of `ToolResult.error`."""
    if outcome.kind in ("ok", "exception", "exit"):
        return None
    if outcome.kind == "ended" and outcome.exit_code is not None and outcome.exit_code < 128:
        return None
    return "timeout" if outcome.kind == "timeout" else "tool_error"


def _note(outcome: CellOutcome, options: PythonOptions) -> str:
    """What has to be said besides, as a sentence."""
    if outcome.kind == "exit":
        return "" if outcome.detail == "0" else f"The code exited with status {outcome.detail}."
    if outcome.kind == "ended":
        return _how_it_ended(outcome.exit_code or 0, options)
    return {
        "ok": "",
        "exception": "",
        "timeout": f"The code was stopped after {options.timeout:g} s. Let it do less, or do it in a faster way.",
        "memory": f"The code was stopped because it used more than {options.memory_mb} MB of memory.",
        "cpu": f"The code was stopped because it used more than {options.cpu_seconds:g} s of processor time.",
        "disk": f"The code was stopped because its files grew beyond {options.scratch_mb} MB.",
        "processes": "The code was stopped because it kept starting processes.",
        "output": "The code was stopped because it printed without end.",
        "garbled": "The code was stopped because it disturbed its own interpreter.",
    }[outcome.kind]


def _how_it_ended(exit_code: int, options: PythonOptions) -> str:
    if exit_code < 128:
        return f"The interpreter's process exited with status {exit_code}." if exit_code else ""
    number = exit_code - 128
    if number == signal.SIGKILL:
        return f"The interpreter was killed; the likely reason is its limit of {options.memory_mb} MB of memory."
    name = _SIGNALS.get(signal.Signals(number)) if number in set(signal.Signals) else None
    return f"The interpreter was ended by {name or f'signal {number}'}."
