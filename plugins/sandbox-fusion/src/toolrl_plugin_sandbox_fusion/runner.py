"""Runs one request of the API in the sandbox of the plugin `python`: compile where the language needs it, then run.

Both commands get a fresh folder with the request's files. A program that can't be run for a reason of the sandbox is an
answer as well: status `SandboxError`, as the API documents it.
"""

from __future__ import annotations

import base64
import logging
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath

from toolrl.errors import ConfigError
from toolrl_plugin_python.sandbox import Finished, Isolation, ProgramLimits, Sandbox
from toolrl_plugin_sandbox_fusion.api import (
    FINISHED,
    SANDBOX_ERROR,
    TIME_LIMIT,
    CommandResult,
    RunRequest,
    RunResponse,
    overall,
)
from toolrl_plugin_sandbox_fusion.languages import Language, installed

OUTPUT_BYTES = 1 << 20
"""What is kept of stdout and of stderr, each, as in Sandbox Fusion."""
_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ssl")
"""What compilers and interpreters need to read."""
_EXCEEDED = {
    "memory": "The program was ended: it took more than {memory} MB of memory.",
    "disk": "The program was ended: it wrote more than {scratch} MB of files.",
    "output": "The program was ended: it printed far too much.",
}
_PREFIXES = "import sys; print(sys.prefix, sys.base_prefix, sys.exec_prefix, sep=chr(10))"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may have at most."""

    seconds: float = 300.0
    """Of compiling and of running, each."""
    memory_mb: int = 4096
    """Also what a request gets that asks for no limit, and a compiler."""
    processes: int = 128
    scratch_mb: int = 256
    """Files that a program writes."""
    fetch_mb: int = 32
    """Files that are brought back."""


class ProgramRunner:
    """A sandbox with its languages. `start` before the first request, `stop` after the last."""

    def __init__(
        self,
        isolation: Isolation = "auto",
        *,
        python: str,
        languages: list[str] | None = None,
        readable: list[Path] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """`languages` None takes all whose tools are found and that work. Raises ConfigError where programs can't be
        isolated here."""
        self.bounds = bounds or Bounds()
        self._wanted = languages
        self._found = installed(python, languages)
        paths = [*map(Path, _FOLDERS), *python_folders(python)]
        shown = [path for path in paths if path.exists()]
        self._sandbox = Sandbox.detect(isolation, [*shown, *(readable or ())])
        self._languages: dict[str, Language] = {}
        self.left_out: dict[str, str] = {}
        """Languages whose tools are on the machine and don't work in the sandbox, with the reason."""

    @property
    def languages(self) -> list[str]:
        """Those that work."""
        return list(self._languages)

    def describe(self) -> str:
        """How programs are isolated."""
        return self._sandbox.describe()

    async def start(self) -> None:
        """Start the sandbox, and try each language. Raises ConfigError where one that was asked for doesn't work."""
        await self._sandbox.start()
        for name, language in self._found.items():
            problem = await self._try(name, language)
            if problem is None:
                self._languages[name] = language
            else:
                self.left_out[name] = problem
        missing = [name for name in self._wanted or () if name not in self._languages]
        if missing or not self._languages:
            name = missing[0] if missing else "python"
            reason = self.left_out.get(name, "its tool isn't on this machine")
            raise ConfigError(
                f"the language {name!r} doesn't work here: {reason}",
                hint="Install its tool, name the folders that it reads by --readable, or leave it out of --languages.",
            )

    async def stop(self) -> None:
        """End the sandbox, with all that still runs in it."""
        await self._sandbox.stop()

    async def run(self, request: RunRequest) -> RunResponse:
        """The answer to one request."""
        language = self._languages.get(request.language)
        compiled = run = None
        files: Mapping[str, bytes] = {}
        if language is None:
            status, message = (
                SANDBOX_ERROR,
                f"this server has no {request.language!r}; it has {', '.join(self._languages)}",
            )
        else:
            try:
                compiled, run, files = await self._commands(language, request)
                status, message = overall(compiled, run)
            except Exception as error:  # noqa: BLE001 - the API's answer to whatever goes wrong here
                status, message = SANDBOX_ERROR, f"the program couldn't be run: {type(error).__name__}: {error}"
                _log.warning(message)
        if sum(map(len, files.values())) > self.bounds.fetch_mb << 20:
            status, message, files = (
                SANDBOX_ERROR,
                f"the files of fetch_files have more than {self.bounds.fetch_mb} MiB",
                {},
            )
        fetched = {path: base64.b64encode(content).decode("ascii") for path, content in files.items()}
        return RunResponse(status, message, compiled, run, os.environ.get("MY_POD_NAME"), fetched)

    async def _commands(
        self, language: Language, request: RunRequest
    ) -> tuple[CommandResult | None, CommandResult | None, Mapping[str, bytes]]:
        # One spelling of each path: no file of the request takes the program's place.
        given = {normpath(path): base64.b64decode(text) for path, text in request.files.items() if text is not None}
        # A program may hold half a character, which no encoding has.
        files = {**given, language.source: request.code.encode("utf-8", "surrogatepass")}
        compiled = None
        if language.compile is not None and language.artifact is not None:
            limits = self._limits(request.compile_timeout, self.bounds.memory_mb)
            argv, fetch = language.command(language.compile), [language.artifact]
            done = await self._sandbox.run(argv, files=files, env=language.env, limits=limits, fetch=fetch)
            compiled = result(done, limits)
            if compiled.failed:
                return compiled, None, {}
            if language.artifact not in done.files:
                raise RuntimeError(f"the compiler made no file {language.artifact!r}, or too large a one")
            files = {**given, language.artifact: done.files[language.artifact]}
        limits = self._limits(request.run_timeout, request.memory_limit_MB)
        stdin = (request.stdin or "").encode("utf-8", "surrogatepass")
        argv = [*language.command(language.run), *(request.args if request.language == "pytest" else ())]
        done = await self._sandbox.run(
            argv, files=files, stdin=stdin, env=language.env, limits=limits, fetch=request.fetch_files
        )
        return compiled, result(done, limits), done.files

    def _limits(self, seconds: float, memory_mb: int) -> ProgramLimits:
        return ProgramLimits(
            wall_seconds=seconds,
            cpu_seconds=0,  # the API speaks of seconds by the clock
            memory_mb=min(memory_mb, self.bounds.memory_mb) if memory_mb > 0 else self.bounds.memory_mb,
            processes=self.bounds.processes,
            file_mb=self.bounds.scratch_mb,
            scratch_mb=self.bounds.scratch_mb,
            output_bytes=OUTPUT_BYTES,
        )

    async def _try(self, name: str, language: Language) -> str | None:
        """Why a small program of this language doesn't work; None where it does."""
        request = RunRequest(language.probe, name, compile_timeout=60.0, run_timeout=30.0)
        try:
            compiled, run, _ = await self._commands(language, request)
        except Exception as error:  # noqa: BLE001 - a language that doesn't work is left out
            return f"{type(error).__name__}: {error}"
        failed = next((one for one in (compiled, run) if one is not None and one.failed), None)
        if failed is None:
            return None
        said = failed.output.strip().splitlines()
        return next((line for line in said if "error" in line.lower()), f"{failed.status}, {failed.return_code}")[:200]


def result(done: Finished, limits: ProgramLimits) -> CommandResult:
    """A command's result in the API's form."""
    stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if done.timed_out:
        return CommandResult(TIME_LIMIT, done.seconds, None, stdout, stderr)
    why = _EXCEEDED.get(done.exceeded)
    if why is not None:
        line = why.format(memory=limits.memory_mb, scratch=limits.scratch_mb)
        stderr += f"{'' if stderr.endswith(chr(10)) or not stderr else chr(10)}{line}\n"
    code = done.exit_code if done.exit_code is not None else -(done.signal or 0)
    return CommandResult(FINISHED, done.seconds, code, stdout, stderr)


def python_folders(python: str) -> list[Path]:
    """What an interpreter needs to read: the parts of its environment, and of the installation behind that. Raises
    ConfigError where it can't be run."""
    try:
        done = subprocess.run([python, "-I", "-c", _PREFIXES], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the Python interpreter {python!r} can't be run: {error}") from error
    prefixes = [Path(line) for line in done.stdout.splitlines()]
    return [prefix / part for prefix in dict.fromkeys(prefixes) for part in ("bin", "lib", "lib64", "pyvenv.cfg")]
