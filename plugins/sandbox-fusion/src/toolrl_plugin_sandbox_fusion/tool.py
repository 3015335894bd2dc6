"""The tool `code_interpreter`: a program in, what it wrote out.

Each call is one request to the sandbox, in a fresh folder there. The model sees verl's schema, one string `code`; as
there, a call may also name a `language` and a `timeout` in seconds. Files that `fetch_files` names are the only thing
that stays from one call of an episode to the next.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from toolrl.errors import ArgumentsError, DataError, ToolsetError, TransientToolError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession
from toolrl.tools.rate_limits import ConcurrencyLimit, Limiter
from toolrl.tools.threads import POOL
from toolrl.tools.traits import ToolTraits
from toolrl.types import Task, ToolCall, ToolResult, ToolSpec
from toolrl_common.http_client import patiently, without_secrets
from toolrl_plugin_sandbox_fusion.api import (
    FINISHED,
    LANGUAGES,
    SANDBOX_ERROR,
    SUCCESS,
    TIME_LIMIT,
    CommandResult,
    RunRequest,
    RunResponse,
    SandboxApiError,
    SandboxClient,
)
from toolrl_plugin_sandbox_fusion.options import CodeInterpreterOptions

NAME = "code_interpreter"
SHARED_FILES = "sandbox_files"
PROBE = "print(6 * 7)"
PROBE_SECONDS = 60.0
"""How long a sandbox may take to come up when a run starts."""
LONGEST_SECONDS = 86400.0
"""What a call may take with all its waiting; a sandbox that hangs is noticed by its requests long before."""
VERL_NOTHING = "no stdout here"
"""What verl's tool gave where a program didn't end."""
_MAX_MESSAGE = 2000


class CodeInterpreter:
    """The toolset of one tool. One client for all episodes of a process."""

    def __init__(self, options: CodeInterpreterOptions, context: BuildContext) -> None:
        self.options = options
        self.client = SandboxClient(
            options.sandbox_fusion_url, options.headers, max_response_mb=options.max_response_mb
        )
        self.spec = _spec(options)
        self._endpoint = without_secrets(self.client.url)
        # Each request has its own time, from when it has its place; what a call waits for is bounded by `patience`.
        self._traits = ToolTraits(timeout=LONGEST_SECONDS, idempotent=True, endpoint=self._endpoint)
        self._shared_limit = context.shared_limit
        self._limits: list[Limiter] = []
        self.files: Mapping[str, str] = {}

    def names(self) -> Sequence[str]:
        return (NAME,)

    def traits(self, name: str) -> ToolTraits:
        return self._traits

    async def start(self) -> None:
        """Read the files that every call gets, connect, and see that the sandbox answers. Raises ToolsetError, and
        ConfigError where another tool has another `rate_limit` for this sandbox."""
        self.files = {path: await POOL.submit(_read_file, name) for path, name in self.options.files.items()}
        await self.client.__aenter__()
        self._limits = [ConcurrencyLimit(self.options.num_workers)]
        if self.options.enable_global_rate_limit:  # Of all processes of the run, under the sandbox's address.
            most, shared = self.options.rate_limit, self._shared_limit
            name = f"sandbox-fusion {self._endpoint}"
            self._limits.append(await shared(name, most) if shared is not None else ConcurrencyLimit(most))
        if self.options.probe:
            await patiently(lambda: self.client.run(self.request({"code": PROBE}, {})), PROBE_SECONDS)

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[CodeInterpreterSession]:
        kwargs = task.tools_kwargs.get(NAME) or {}
        files = _task_files((kwargs.get("create_kwargs") or {}).get("files"), task)
        yield CodeInterpreterSession(self, {**self.files, **files}, episode)

    async def stop(self) -> None:
        await self.client.__aexit__()

    async def run(self, request: RunRequest) -> tuple[RunResponse, dict[str, float]]:
        """The sandbox's answer, and how long the call waited for a place and how often it was made again. No place is
        held between retries."""
        clock = asyncio.get_running_loop().time
        effort = {"queue_seconds": 0.0, "retries": -1.0}

        async def attempt() -> RunResponse:
            effort["retries"] += 1
            begin = clock()
            async with self._place():
                effort["queue_seconds"] += clock() - begin
                return await self.client.run(request)

        return await patiently(attempt, self.options.patience), effort

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """A place of this process, then one of the run: a call that waits for the first holds no permit of the run."""
        async with AsyncExitStack() as stack:
            for limit in self._limits:
                stack.callback((await limit.acquire()).release)
            yield

    def request(self, arguments: Mapping[str, Any], files: Mapping[str, str]) -> RunRequest:
        """The request of a call's arguments. Raises ArgumentsError."""
        options, code = self.options, arguments.get("code")
        if not isinstance(code, str):
            raise ArgumentsError(f"Bad arguments for the tool {NAME!r}: 'code': expected a text.")
        seconds = self._seconds(arguments.get("timeout"))
        return RunRequest(
            code=code,
            language=self._language(arguments.get("language")),
            compile_timeout=options.compile_timeout or seconds,
            run_timeout=seconds,
            memory_limit_MB=options.memory_limit_mb,
            files=files,
            fetch_files=options.fetch_files,
        )

    def _seconds(self, given: Any) -> float:
        if given is None:
            return self.options.default_timeout
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= LONGEST_SECONDS:
            raise ArgumentsError(
                f"Bad arguments for the tool {NAME!r}: 'timeout': expected seconds, more than 0 and at most "
                f"{LONGEST_SECONDS:g} (got {given!r:.40})."
            )
        return float(given)

    def _language(self, given: Any) -> str:
        name = self.options.default_language if given is None else given
        allowed = self.options.languages or LANGUAGES
        if name not in allowed:
            known = ", ".join(allowed)
            raise ArgumentsError(
                f"Bad arguments for the tool {NAME!r}: 'language': {str(name)[:40]!r} isn't one of {known}."
            )
        return str(name)


class CodeInterpreterSession(ToolSession):
    """The tool in one episode."""

    def __init__(self, tool: CodeInterpreter, files: Mapping[str, str], episode: EpisodeContext) -> None:
        self._tool = tool
        self._files = dict(files)
        self._episode = episode

    def specs(self) -> Sequence[ToolSpec]:
        return (self._tool.spec,)

    def traits(self, name: str) -> ToolTraits:
        return self._tool.traits(name)

    async def call(self, call: ToolCall) -> ToolResult:
        request = self._tool.request(call.arguments, self._files)
        verl = self._tool.options.compat == "verl"
        try:
            response, effort = await self._tool.run(request)
            self._keep(response)
            text = verl_text(response) if verl else plain_text(request, response)
        except (SandboxApiError, TransientToolError):
            if verl:
                return ToolResult(VERL_NOTHING, metrics={"succeeded": 0.0})
            raise
        return ToolResult(text, metrics={"succeeded": float(response.status == SUCCESS), **effort})

    def _keep(self, response: RunResponse) -> None:
        """What was fetched is there in the next call, and for other tools."""
        wanted = {path: content for path, content in response.files.items() if path in self._tool.options.fetch_files}
        try:
            contents = {path: base64.b64decode(content) for path, content in wanted.items()}
        except (binascii.Error, ValueError) as error:
            raise SandboxApiError("The sandbox's answer can't be read: a fetched file isn't base64.") from error
        if contents:
            self._files.update(wanted)
            self._episode.shared.setdefault(SHARED_FILES, {}).update(contents)


def _spec(options: CodeInterpreterOptions) -> ToolSpec:
    properties: dict[str, Any] = {"code": {"type": "string", "description": "The code to execute."}}
    if options.languages is not None and len(options.languages) > 1:
        properties["language"] = {
            "type": "string",
            "enum": list(options.languages),
            "description": f"The language of the code; {options.default_language} by default.",
        }
    return ToolSpec(NAME, options.description, {"type": "object", "properties": properties, "required": ["code"]})


def _read_file(name: str) -> str:
    try:
        return base64.b64encode(Path(name).expanduser().read_bytes()).decode("ascii")
    except OSError as error:
        raise ToolsetError(
            f"the file {name!r} can't be read: {error.strerror}", where=NAME, hint="Correct the tool's option `files`."
        ) from error


def _task_files(given: Any, task: Task) -> Mapping[str, str]:
    if given is None:
        return {}
    try:
        if isinstance(given, Mapping):
            for content in given.values():
                base64.b64decode(content, validate=True)
            return given
    except (TypeError, ValueError):
        pass
    raise DataError(
        f"task {task.id!r}: tools_kwargs.{NAME}.create_kwargs.files isn't an object of path to content in base64"
    )


# What the model reads.


def verl_text(response: RunResponse) -> str:
    """Output where the program ended, with whatever exit code, else verl's fixed text."""
    run = response.run_result
    return run.output if run is not None and run.status == FINISHED else VERL_NOTHING


def plain_text(request: RunRequest, response: RunResponse) -> str:
    """Output, or what happened. Raises SandboxApiError where it wasn't the program that failed."""
    compiled, run = response.compile_result, response.run_result
    if response.status != SANDBOX_ERROR:
        if compiled is not None and compiled.status == TIME_LIMIT:
            seconds = f"{request.compile_timeout:g} s"
            return _lines(compiled.output, f"Compiling took longer than {seconds} and was stopped.")
        if compiled is not None and compiled.failed:
            return _lines("The program doesn't compile:", compiled.output)
        if run is not None and run.status == TIME_LIMIT:
            return _lines(run.output, f"The program ran longer than {request.run_timeout:g} s and was stopped.")
        if run is not None and run.status == FINISHED:
            return _ended(run)
    raise SandboxApiError(f"The sandbox couldn't run the program.\n{response.message[:_MAX_MESSAGE]}")


def _ended(run: CommandResult) -> str:
    code = run.return_code or 0
    if code < 0 or code > 128:
        signal = -code if code < 0 else code - 128
        why = ", perhaps because it took too much memory" if signal == 9 else ""
        return _lines(run.output, f"The program was killed by signal {signal}{why}.")
    if code and not run.stderr:
        return _lines(run.output, f"The program ended with exit code {code}.")
    return run.output or "The program ended without any output."


def _lines(first: str, second: str) -> str:
    """Two texts on lines of their own; either may be empty."""
    if first and second and not first.endswith("\n"):
        first += "\n"
    return first + second
