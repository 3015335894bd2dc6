"""Options of the Sandbox Fusion plugin."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from toolrl.types import Task
from toolrl_plugin_sandbox_fusion.api import Language, run_code_url
from toolrl_plugin_sandbox_fusion.cases import Cases, read_cases

DESCRIPTION = "A tool for executing code."
"""What verl's tool is described as."""


def _address(url: str) -> str:
    run_code_url(url)
    return url


Seconds = Annotated[float, Field(gt=0, le=86400)]


class SandboxOptions(BaseModel, extra="forbid"):
    """What the tool and the reward have in common: where the sandbox is, and what a program may take."""

    sandbox_fusion_url: Annotated[str, AfterValidator(_address)] = Field(
        description="Address of the sandbox: with its path, or without one for `/run_code`."
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="HTTP headers of each request, such as a key: `Authorization: ${SANDBOX_KEY}`.",
    )
    memory_limit_mb: int = Field(1024, ge=-1, description="MiB of memory that a program may take; −1 for no limit.")
    max_response_mb: int = Field(
        16, ge=1, le=1024, description="MiB that an answer of the sandbox may have; a larger one is an error."
    )
    patience: float = Field(
        300.0,
        ge=0,
        le=86400,
        description="Seconds that a request is made again while the sandbox is busy (429, 503), its gateway fails "
        "(502, 504) or it can't be reached; 0 for never. Then the call is answered with an error, and a case of the "
        "reward is a fault of the sandbox (−1).",
    )


class CodeInterpreterOptions(SandboxOptions):
    """Options of the tool `code_interpreter`. The first six are those of verl's tool."""

    num_workers: int = Field(10, ge=1, description="Calls that one process has under way at once.")
    rate_limit: int = Field(
        10,
        ge=1,
        description="Calls under way at once over all processes of the run, on all nodes. A number of calls and not of "
        "calls a second, whatever its name says.",
    )
    enable_global_rate_limit: bool = Field(True, description="False: `rate_limit` isn't kept, only `num_workers` is.")
    default_timeout: Seconds = Field(30.0, description="Seconds that a program may run.")
    default_language: Language = Field("python", description="Language of a call that names none.")
    compile_timeout: Seconds | None = Field(
        None, description="Seconds that compiling may take; null for as long as running."
    )
    languages: list[Language] | None = Field(
        None,
        min_length=1,
        description="The languages that a call may ask for by `language`; several become an argument of the tool. "
        "null: any that the API has, without such an argument.",
    )
    files: dict[str, str] = Field(
        default_factory=dict,
        description="Path in the sandbox to path of a local file: put beside every program. A task adds its own by "
        "`tools_kwargs.code_interpreter.create_kwargs.files`, path to content in base64.",
    )
    fetch_files: list[str] = Field(
        default_factory=list,
        description="Paths that are brought back after each call. They are there again in the next call of the "
        "episode, and other tools find them in `episode.shared['sandbox_files']`, path to bytes.",
    )
    description: str = Field(DESCRIPTION, min_length=1, description="The tool's description for the model.")
    compat: Literal["verl"] | None = Field(
        None,
        description='verl: the model reads what verl\'s tool gave: output where the program ended, "no stdout here" '
        "for a time-out, a compile error or a failed sandbox. null: what happened, in words.",
    )
    probe: bool = Field(
        True, description="Run a small program when the run starts, so that a wrong address ends it at once."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> CodeInterpreterOptions:
        if self.languages is not None and self.default_language not in self.languages:
            raise ValueError(f"default_language {self.default_language!r} isn't among languages {self.languages}")
        return self


class SandboxRewardOptions(SandboxOptions):
    """Options of the reward `sandbox_fusion`."""

    continuous: bool = Field(False, description="Only the first ten test cases are run and counted.")
    timeout: Seconds = Field(
        10.0, description="Seconds that a program may take for one case, compiling and running each."
    )
    language: Language = Field("python", description="Language of the solutions.")
    cases: str | None = Field(
        None,
        min_length=1,
        description="Key of the task's `extra` that holds the test cases; null for the task's answer.",
    )
    judge: Literal["final", "answer", "all"] = Field(
        "final",
        description="Where the solution is looked for: the text of the final turn without reasoning and calls, what an "
        "end flag of the environment matched, or the text of all turns. Never what a tool answered.",
    )
    max_concurrent: int = Field(64, ge=1, description="Cases that one process has under way at once.")

    def check_task(self, task: Task) -> None:
        """Raises DataError for a task without test cases, or with ones that can't be run."""
        self.read_cases(task)

    def read_cases(self, task: Task) -> Cases:
        """The task's test cases. Raises DataError."""
        given = task.answer if self.cases is None else task.extra.get(self.cases)
        return read_cases(given, f"task {task.id!r}", self.language)
