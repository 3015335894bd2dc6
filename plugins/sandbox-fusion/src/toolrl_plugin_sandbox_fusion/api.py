"""`POST /run_code`, as the Sandbox Fusion API documents it: requests, answers, and a client.

    async with SandboxClient("http://127.0.0.1:8080") as client:
        response = await client.run(RunRequest("print(6 * 7)"))

A request names a program, its language, its input and its limits. An answer has up to two command results, one of the
compiler and one of the program, and a status over both: `Success` where every command ended with 0, `Failed` where one
didn't or ran out of time, `SandboxError` where the sandbox itself failed. Retries are the caller's:
`toolrl_common.http_client.patiently`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from toolrl.errors import ToolError
from toolrl_common.http_client import JsonClient, service_url

LANGUAGES = (
    "python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust", "cuda",
    "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest", "verilog",
    "python_gpu", "lean", "swift", "racket",
)  # fmt: skip
"""The values of `language`. A server may lack some."""

FINISHED, ERROR, TIME_LIMIT = "Finished", "Error", "TimeLimitExceeded"
"""Of a command: it ended, the sandbox couldn't run it, it was stopped."""
SUCCESS, FAILED, SANDBOX_ERROR = "Success", "Failed", "SandboxError"
"""Of a whole run."""
MARGIN_SECONDS = 10.0
"""What a request may take besides compiling and running."""


def _known_language(name: str) -> str:
    if name not in LANGUAGES:
        raise ValueError(f"the API has no language {name!r}; it has {', '.join(LANGUAGES)}")
    return name


def _paths(paths: Sequence[str]) -> Sequence[str]:
    from toolrl_plugin_python.sandbox import check_file_name  # The server alone reads requests, and has it.

    for path in paths:
        check_file_name(path)
    return paths


def _files(files: Mapping[str, str | None]) -> Mapping[str, str | None]:
    _paths(list(files))
    for path, content in files.items():
        try:
            base64.b64decode("".join((content or "").split()), validate=True)  # line breaks are common in it
        except ValueError as error:
            raise ValueError(f"the content of {path!r} isn't base64: {error}") from error
    return files


Language = Annotated[str, AfterValidator(_known_language)]
_Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One program to run. Times are in seconds. Unknown fields of a body are ignored, as the API does it."""

    code: str
    language: Language = "python"
    stdin: str | None = None
    compile_timeout: _Limit = 10.0
    run_timeout: _Limit = 10.0
    memory_limit_MB: int = -1
    """Of each command; −1 for none."""
    files: Annotated[Mapping[str, str | None], AfterValidator(_files)] = field(default_factory=dict)
    """Path to content in base64, put beside the program."""
    fetch_files: Annotated[Sequence[str], AfterValidator(_paths)] = ()
    """Paths to bring back afterwards."""
    args: Sequence[str] = ()
    """The program's, of pytest alone."""

    def body(self) -> dict[str, Any]:
        """The JSON object of the API."""
        return {name: value for name, value in asdict(self).items() if name != "args" or value}


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What became of the compiler, or of the program."""

    status: str = ""
    """Finished, Error or TimeLimitExceeded."""
    execution_time: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None
    """Seconds."""
    return_code: Annotated[int, Field(strict=True)] | None = None
    stdout: str | None = None
    stderr: str | None = None

    @property
    def output(self) -> str:
        """What it wrote, stdout first."""
        return (self.stdout or "") + (self.stderr or "")

    @property
    def failed(self) -> bool:
        """It didn't run, ran out of time, or ended with something else than 0."""
        return self.status != FINISHED or self.return_code not in (0, None)


@dataclass(frozen=True, slots=True)
class RunResponse:
    """An answer of `/run_code`. Fields that later versions add are ignored."""

    status: str
    """Success, Failed or SandboxError."""
    message: Annotated[str, BeforeValidator(lambda text: "" if text is None else text)] = ""
    """What failed in the sandbox."""
    compile_result: CommandResult | None = None
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    files: Annotated[dict[str, str], BeforeValidator(lambda files: files or {})] = field(default_factory=dict)
    """Path to content in base64, of those that were asked for and are there."""

    def body(self) -> dict[str, Any]:
        """The JSON object of the API."""
        return asdict(self)

    @classmethod
    def read(cls, value: Any) -> RunResponse:
        """From JSON. Raises ValueError with the place of the first mistake."""
        try:
            return _RESPONSE.validate_python(value)
        except ValidationError as error:
            first = problems(error)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise ValueError(f"`{where}`: {first['msg']}") from None


_RESPONSE = TypeAdapter(RunResponse)


def problems(error: ValidationError) -> list[Any]:
    """The problems in the API's form, each with `loc`, `msg` and `type`."""
    return error.errors(include_url=False, include_context=False, include_input=False)


class SandboxApiError(ToolError):
    """The sandbox couldn't be asked, or answered with something that is no answer; the same request won't do better."""

    kind: ClassVar[str] = "sandbox_error"


class SandboxClient(JsonClient):
    """Asks one address. Used inside `async with`."""

    service = "sandbox"
    hint = "Correct `sandbox_fusion_url`, or the key in `headers`."
    limit_option = "max_response_mb"
    error = SandboxApiError
    transient = frozenset({429, 502, 503, 504})

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, *, max_response_mb: int = 16) -> None:
        super().__init__(run_code_url(url), headers, max_bytes=max_response_mb << 20)

    async def run(self, request: RunRequest) -> RunResponse:
        """Run a program. Raises TransientToolError, SandboxApiError, and ToolsetError for an address, a key or a path
        that can't be right."""
        seconds = request.compile_timeout + request.run_timeout + MARGIN_SECONDS
        answer = await self.post(request.body(), seconds=seconds)
        try:
            return RunResponse.read(answer)
        except ValueError as error:
            raise self.unreadable(error) from error


def run_code_url(url: str) -> str:
    """The address of `/run_code`: as given, or with that path where the address has none. Raises ValueError."""
    return service_url(url, "/run_code", "http://127.0.0.1:8080/run_code")


def overall(compiled: CommandResult | None, run: CommandResult | None) -> tuple[str, str]:
    """The status over both commands, and the message: a command's error goes before all else."""
    results = [result for result in (compiled, run) if result is not None]
    for result in results:
        if result.status == ERROR:
            return SANDBOX_ERROR, result.stderr or ""
    return (FAILED if any(result.failed for result in results) else SUCCESS), ""
