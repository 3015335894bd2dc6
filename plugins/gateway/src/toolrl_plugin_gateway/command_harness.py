"""The harness `command`: a process for each episode, which finds the gateway by its environment variables."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext, Outcome
from toolrl.tools.cancellation import uninterrupted
from toolrl_common import process_guard
from toolrl_plugin_gateway.dialect import Json
from toolrl_plugin_gateway.harness import MODEL, AgentError, GatewayHarness, describe
from toolrl_plugin_gateway.options import CommandOptions
from toolrl_plugin_gateway.session import Session

GUARD_SECONDS = 5.0
"""How long the guard may take to end everything, before it is killed itself."""
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")
_MOST_OUTPUT = 1 << 20
"""Bytes of stdout, and of stderr, that are kept: the last ones."""
_SHOWN = 2000
"""Characters of output in a message."""


class CommandHarness(GatewayHarness):
    """Follows Harness."""

    def __init__(self, options: CommandOptions, context: BuildContext) -> None:
        """Raises ConfigError for a command that can't be found, or a folder that isn't there."""
        super().__init__(options, context)
        self._options = options
        scripts = str(Path(sys.executable).parent)  # The programs of the run's own environment come first.
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._env = {**inherited, "PATH": os.pathsep.join([scripts, inherited.get("PATH", os.defpath)]), **options.env}
        words = shlex.split(options.command) if isinstance(options.command, str) else options.command
        # It is started elsewhere, so files are named by their whole paths.
        self._command = [str(Path(word).absolute()) if Path(word).is_file() else word for word in words]
        if not words or shutil.which(self._command[0], path=self._env["PATH"]) is None:
            raise ConfigError(f"there is no program {' '.join(words[:1])!r} on PATH", where=f"{context.where}.command")
        if options.folder is not None and not Path(options.folder).is_dir():
            raise ConfigError(f"there is no folder {options.folder!r}", where=f"{context.where}.folder")
        self.places = asyncio.Semaphore(options.processes)

    async def run(self, session: Session) -> Outcome:
        """See GatewayHarness. Raises AgentError."""
        async with self._folder() as folder:
            task = describe(session.task)
            prompt = next((it["content"] for it in reversed(task["messages"]) if it["role"] == "user"), "")
            prompt = prompt.encode(errors="replace").decode()  # Half of a surrogate pair can't be written.
            files = folder.parent
            (files / "task.json").write_text(json.dumps(task, ensure_ascii=False), "utf-8", "replace")
            (files / "prompt.txt").write_text(prompt, "utf-8")
            (files / "nothing.txt").touch()
            values = {"prompt": prompt, "task": str(files / "task.json")}  # A prompt may have `{task}` in it.
            words = [re.sub(r"\{(prompt|task)\}", lambda it: values[it[1]], word) for word in self._command]
            env = {**self._env, **self._access(session), "TOOLRL_TASK": str(files / "task.json")}
            if self._options.answer == "file":
                env["TOOLRL_ANSWER"] = str(files / "answer.txt")
            status, out, err = await _ended(words, self._stdin(session, task, files), folder, env)
            if status:
                said = (err.strip() or out.strip())[-_SHOWN:]
                raise AgentError(f"{shlex.join(self._command)!r} ended with status {status}:\n{said}")
            return Outcome(self._answer(out, files / "answer.txt"))

    def _stdin(self, session: Session, task: Json, files: Path) -> Path | bytes:
        """A file; or bytes, which can be read once and not again by what the program starts."""
        if self._options.agent_reward:
            return json.dumps({**task, "reward_key": session.reward_key}, ensure_ascii=False).encode(errors="replace")
        return files / {"task": "task.json", "prompt": "prompt.txt", "nothing": "nothing.txt"}[self._options.stdin]

    def _answer(self, out: str, file: Path) -> str | None:
        """Raises AgentError where the program wrote no file."""
        match self._options.answer:
            case "stdout":
                return out.strip()
            case "last_line":
                return out.strip().rpartition("\n")[2].strip()
            case "file":
                return _read_answer(file)
        return None

    def _access(self, session: Session) -> dict[str, str]:
        """How SDKs find the gateway."""
        url = self.gateway.url
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": session.key,
            "OPENAI_MODEL": MODEL,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": session.key,
            "ANTHROPIC_MODEL": MODEL,
        }

    @asynccontextmanager
    async def _folder(self) -> AsyncIterator[Path]:
        """The folder that a process starts in, in one for the files of its task. Both are deleted after it."""
        parent = Path(tempfile.mkdtemp(prefix="toolrl-"))
        folder = parent / "folder"
        try:
            if self._options.folder is not None:
                await asyncio.to_thread(shutil.copytree, self._options.folder, folder, symlinks=True)
            folder.mkdir(exist_ok=True)
            yield folder
        finally:
            await uninterrupted(asyncio.to_thread(shutil.rmtree, parent, ignore_errors=True))


def _read_answer(file: Path) -> str:
    """The text of a regular file: whatever else has its name might be waited for without end. Raises AgentError."""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise OSError("not a regular file")
            return opened.read(_MOST_OUTPUT).decode(errors="replace").strip()
    except OSError as error:
        raise AgentError(f"answer: file: the program wrote none to TOOLRL_ANSWER: {error}") from None


async def _ended(words: list[str], stdin: Path | bytes, folder: Path, env: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command to its end: exit status, and the last of stdout and stderr. Nothing of it is left, on any path."""
    with stdin.open("rb") if isinstance(stdin, Path) else contextlib.nullcontext(subprocess.PIPE) as given:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", process_guard.__file__, str(os.getpid()), *words),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdin is not None:
        assert isinstance(stdin, bytes)
        process.stdin.write(stdin)
        process.stdin.close()
    pumps = [asyncio.create_task(_tail(process.stdout)), asyncio.create_task(_tail(process.stderr))]
    try:
        status = await process.wait()
        out, err = await asyncio.gather(*pumps)
        return status, out, err
    finally:
        await uninterrupted(_end(process, pumps))


async def _end(process: asyncio.subprocess.Process, pumps: list[asyncio.Task[str]]) -> None:
    for signal_it, seconds in ((process.terminate, GUARD_SECONDS), (process.kill, None)):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal_it()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await process.wait()
    for pump in pumps:
        pump.cancel()
    await asyncio.gather(*pumps, return_exceptions=True)
    process._transport.close()  # type: ignore[attr-defined]


async def _tail(stream: asyncio.StreamReader) -> str:
    kept = bytearray()
    while data := await stream.read(1 << 16):
        kept += data
        del kept[:-_MOST_OUTPUT]
    return kept.decode(errors="replace")
