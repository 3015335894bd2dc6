"""The tool `python`: the code of a call in, what it printed out."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import textwrap
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from toolrl.errors import ArgumentsError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession
from toolrl.tools.cancellation import uninterrupted
from toolrl.tools.traits import ToolTraits
from toolrl.types import Task, ToolCall, ToolResult, ToolSpec
from toolrl_plugin_python import detection, paths
from toolrl_plugin_python.interpreter import CellOutcome, Interpreter, Pool
from toolrl_plugin_python.jail.settings import NONE, JobLimits, Settings
from toolrl_plugin_python.options import PythonOptions

MAX_CODE = 1 << 20
"""Characters that the code of a call may have."""
QUEUE_SECONDS = 3600.0
"""How long a call may wait for its turn: its own time begins with its code."""
_PROBE_MODULE = "colorsys"
"""A module of the standard library that nothing else imports."""
_CALLED = {"", "py", "python", "python3", "ipython", "pycon", "tool_code"}
"""Languages of the fence that a call's code may be wrapped in."""
_log = logging.getLogger(__name__)


class PythonToolset:
    """The tool under one name. Episodes share nothing but the pool that their interpreters come from."""

    def __init__(self, options: PythonOptions, name: str) -> None:
        self.options = options
        self._name = name
        self._settings = settings_of(options)
        self._pool: Pool | None = None
        self.slots = asyncio.Semaphore(0)
        """One is held by each call that runs."""
        self.isolation = ""
        """Which mechanisms isolate, once it is started."""
        self.spec = ToolSpec(name, options.description or description(options), _PARAMETERS)

    def names(self) -> Sequence[str]:
        return (self._name,)

    async def start(self) -> None:
        """Find out how code can be isolated here, and make the first interpreters. Raises ConfigError, KeeperError."""
        settings, self.isolation = await asyncio.to_thread(
            detection.detect, self.options.isolation, self._settings, _PROBE_MODULE
        )
        level = logging.WARNING if settings.mode == NONE else logging.INFO
        _log.log(level, "tool %r: isolation: %s", self._name, self.isolation)
        options = self.options
        self._pool = Pool(settings, limits_of(options, settings), options.output_kb << 10, options.pool_size)
        await self._pool.start()
        self.slots = asyncio.Semaphore(options.concurrency or 2 * (os.cpu_count() or 1))

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        session = _PythonSession(self)
        try:
            yield session
        finally:
            await uninterrupted(session.close())

    async def stop(self) -> None:
        """End every interpreter and the keeper."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await uninterrupted(pool.stop())

    async def take(self) -> Interpreter:
        """An interpreter for one call or one episode."""
        if self._pool is None:
            raise RuntimeError("the tool isn't started")
        return await self._pool.take()


class _PythonSession(ToolSession):
    """One episode."""

    def __init__(self, toolset: PythonToolset) -> None:
        self._toolset = toolset
        self._options = toolset.options
        self._interpreter: Interpreter | None = None
        self._in_turn = asyncio.Lock()
        self._state_lost = False
        """And the model hasn't read so yet."""

    def specs(self) -> Sequence[ToolSpec]:
        return (self._toolset.spec,)

    def traits(self, name: str) -> ToolTraits:
        return ToolTraits(timeout=self._options.timeout + QUEUE_SECONDS)

    async def call(self, call: ToolCall) -> ToolResult:
        code = call.arguments.get("code")
        if not isinstance(code, str):
            raise ArgumentsError("`code` has to be a text: the Python code to run.")
        if len(code) > MAX_CODE:
            raise ArgumentsError(f"`code` has {len(code)} characters, at most {MAX_CODE} are run.")
        code = runnable(code)
        if self._options.persistent:
            async with self._in_turn, self._toolset.slots:
                return await self._run_in_episode(code)
        async with self._toolset.slots:
            return await self._run_fresh(code)

    async def close(self) -> None:
        """The episode is over: its interpreter ends."""
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is not None:
            await interpreter.close()

    async def _run_fresh(self, code: str) -> ToolResult:
        interpreter = await self._toolset.take()
        try:
            outcome = await interpreter.execute(code, self._options.timeout, last=True)
        finally:
            await uninterrupted(interpreter.close())
        return answer(outcome, self._options, state_lost=False)

    async def _run_in_episode(self, code: str) -> ToolResult:
        if self._interpreter is not None and not self._interpreter.alive:
            await self._lose()
        if self._interpreter is None:
            self._interpreter = await self._toolset.take()
        try:
            outcome = await self._interpreter.execute(code, self._options.timeout, last=False)
        except BaseException:
            # Cancelled in the middle, or the keeper is gone: its state is unknown.
            await uninterrupted(self._lose())
            raise
        if not self._interpreter.alive:
            await self._lose()
        lost, self._state_lost = self._state_lost, False
        return answer(outcome, self._options, state_lost=lost)

    async def _lose(self) -> None:
        self._state_lost = True
        await self.close()


def runnable(text: str) -> str:
    """The code without the Markdown fence that it is wrapped in, and without an indentation that all of it has."""
    lines = re.sub(r"\A(?:[ \t\r]*+\n)++", "", text.rstrip()).split("\n")
    if lines[0].lstrip().startswith("```") and lines[0].strip()[3:].strip().lower() in _CALLED:
        del lines[0]
        if lines and lines[-1].strip() == "```":
            del lines[-1]
    code = "\n".join(lines)
    first = next((line for line in lines if line.strip()), "")
    return textwrap.dedent(code) if first[:1] in (" ", "\t") else code


def build_python(options: PythonOptions | None, context: BuildContext) -> PythonToolset:
    """The tool as `python`."""
    return PythonToolset(options or PythonOptions(), "python")


def build_code_interpreter(options: PythonOptions | None, context: BuildContext) -> PythonToolset:
    """The tool as `code_interpreter`."""
    return PythonToolset(options or PythonOptions(), "code_interpreter")


def settings_of(options: PythonOptions) -> Settings:
    """What the options say of isolation, before it is known which works. Raises ConfigError."""
    paths.check_readable(options.readable)
    package_paths, folders = paths.package_paths(options.packages)
    asked = [*package_paths, *map(str, options.readable)]
    return Settings(
        readable=tuple(dict.fromkeys([*paths.system_libraries(), *paths.interpreter_paths(), *asked])),
        search_path=(*paths.search_path(), *folders),
        hidden=tuple(paths.other_packages(asked)),
        preload=tuple(options.preload),
        packages=tuple(options.packages),
    )


def limits_of(options: PythonOptions, settings: Settings) -> JobLimits:
    """What the keeper holds code to. Without isolation that is nothing: only time and output are bounded then."""
    names = ("cpu_seconds", "memory_mb", "processes", "file_mb", "scratch_mb")
    bounds = {name: getattr(options, name) for name in names if settings.mode != NONE}
    return JobLimits(**bounds, interpreter=True, renewed=options.persistent)


_PARAMETERS = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The Python code to run."}},
    "required": ["code"],
}


def description(options: PythonOptions) -> str:
    """The tool's description for the model: what comes back, what stays, what can be imported, and the limits."""
    state = (
        "Variables and files stay for later calls."
        if options.persistent
        else "Every call starts anew: nothing stays from earlier calls."
    )
    if "*" in options.packages:
        can_import = "the standard library and the packages that are installed"
    else:
        can_import = ", ".join(["the standard library", *options.packages])
    return (
        "Runs Python code and returns what it prints and the value of its last expression. "
        f"{state} It can import {can_import}. There is no network and no input(). "
        f"Limits: {options.timeout:g} seconds, {options.memory_mb} MB of memory."
    )


def check() -> str:
    """For `toolrl doctor`: which isolation works here, tried with a call."""

    async def tried() -> str:
        toolset = PythonToolset(PythonOptions(pool_size=1), "python")
        try:
            await toolset.start()
            interpreter = await toolset.take()
            outcome = await interpreter.execute("6 * 7", toolset.options.timeout, last=True)
            await interpreter.close()
        finally:
            await toolset.stop()
        if outcome.kind != "ok" or outcome.head + outcome.tail != b"42\n":
            raise RuntimeError(f"6 * 7 ended as {outcome.kind}: {outcome.head[:300]!r}")
        return f"{toolset.isolation}; a call took {1000 * outcome.seconds:.0f} ms"

    return asyncio.run(tried())


STATE_LOST = "The interpreter was started anew: variables, imports and files of earlier calls are gone."


def answer(outcome: CellOutcome, options: PythonOptions, *, state_lost: bool) -> ToolResult:
    """The result of a call. An exception of the code is a result like any other: the model shall read it."""
    notes = [note for note in (_note(outcome, options), STATE_LOST if state_lost else "") if note]
    printed = _printed(outcome)
    if not printed and not notes:
        printed = "(no output)"
    text = "\n".join(part for part in (printed, *(f"[{note}]" for note in notes)) if part)
    error = _error(outcome)
    metrics = {"exception": float(outcome.kind == "exception"), "stopped": float(error is not None)}
    return ToolResult(text, error=error, metrics=metrics)


def _printed(outcome: CellOutcome) -> str:
    # A cut may fall inside a character.
    head, tail = (part.decode("utf-8", errors="replace") for part in (outcome.head, outcome.tail))
    cut = f"\n[{outcome.left_out} bytes left out]\n" if outcome.left_out else ""
    return f"{head}{cut}{tail}".rstrip("\n")


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
        "output": "The code was stopped because it printed without end.",
        "garbled": "The code was stopped because it disturbed its own interpreter.",
    }[outcome.kind]


def _how_it_ended(exit_code: int, options: PythonOptions) -> str:
    if exit_code < 128:
        return f"The interpreter's process exited with status {exit_code}." if exit_code else ""
    number = exit_code - 128
    if number == signal.SIGKILL:
        return f"The interpreter was killed; the likely reason is its limit of {options.memory_mb} MB of memory."
    return f"The interpreter was ended by signal {number}."
