"""The requests and answers of `POST /run_code`, as the Sandbox Fusion API documents them.

A request names a program, its language, its input and its limits. An answer has up to two command results, one of the
compiler and one of the program, and a status over both: `Success` where every command ended with 0, `Failed` where one
didn't or ran out of time, `SandboxError` where the sandbox itself failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

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


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One program to run. Times are in seconds."""

    code: str
    language: str = "python"
    stdin: str | None = None
    compile_timeout: float = 10.0
    run_timeout: float = 10.0
    memory_limit_mb: int = -1
    """Of each command; −1 for none."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path to content in base64, put beside the program."""
    fetch_files: Sequence[str] = ()
    """Paths to bring back afterwards."""

    def body(self) -> dict[str, Any]:
        """The JSON object that the API takes."""
        fields = asdict(self)
        return {"memory_limit_MB": fields.pop("memory_limit_mb"), **fields}


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
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise ValueError(f"`{where}`: {first['msg']}") from None


_RESPONSE = TypeAdapter(RunResponse)


def overall(compiled: CommandResult | None, run: CommandResult | None) -> tuple[str, str]:
    """The status over both commands, and the message: a command's error goes before all else."""
    results = [result for result in (compiled, run) if result is not None]
    for result in results:
        if result.status == ERROR:
            return SANDBOX_ERROR, result.stderr or ""
    return (FAILED if any(result.failed for result in results) else SUCCESS), ""
