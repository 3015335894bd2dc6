"""Options of the tool `python` and of the reward `code`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from toolrl.types import Task
from toolrl_plugin_python.cases import read_cases


class IsolationOptions(BaseModel, extra="forbid"):
    """How code is isolated, and what it can import."""

    isolation: Literal["auto", "namespaces", "landlock", "none"] = Field(
        "auto",
        description="How code is kept from the machine: `auto` takes the strongest that works here and refuses to "
        "start where none does; `none` gives code all the rights of the run.",
    )
    packages: list[str] = Field(
        [],
        description="Distributions that code can import besides the standard library, with all they require, for "
        "example `numpy`; `*` for everything that is installed beside toolrl.",
    )


class PythonOptions(IsolationOptions):
    """Options of the tools `python` and `code_interpreter`."""

    persistent: bool = Field(
        False,
        description="One interpreter an episode, a single process whose variables and files stay from call to call; "
        "otherwise every call has a fresh one.",
    )
    timeout: float = Field(10.0, gt=0, le=3600, description="Seconds that the code of a call may run.")
    cpu_seconds: float = Field(
        30.0,
        ge=0,
        description="Seconds of processor time that a call may use, all its processes together; 0 for no limit.",
    )
    memory_mb: int = Field(
        512, ge=16, description="Megabytes of memory that the code may use, all its processes together."
    )
    processes: int = Field(32, ge=1, le=4096, description="Processes and threads that the code may have at once.")
    file_mb: int = Field(64, ge=1, description="Megabytes that one file may have.")
    scratch_mb: int = Field(
        128, ge=1, description="Megabytes that all files together may have; they are kept in memory and count extra."
    )
    output_kb: int = Field(
        64, ge=1, le=65536, description="Kilobytes kept of what a call prints; the middle of more is left out."
    )
    preload: list[str] = Field(
        [],
        description="Modules that are imported once, before interpreters are made, so that calls needn't wait for "
        "them. This import isn't isolated.",
    )
    readable: list[Path] = Field(
        [], description="More files and folders that code can read, as absolute paths; a data set, for example."
    )
    pool_size: int = Field(2, ge=0, le=256, description="Isolated interpreters that are kept ready for calls to come.")
    concurrency: int | None = Field(
        None, ge=1, description="Calls that run at once, others wait; None for twice the number of processors."
    )
    description: str | None = Field(
        None, min_length=1, description="The tool's description for the model; None for a text made from these options."
    )


class CodeOptions(IsolationOptions):
    """Options of the reward `code`."""

    cases: str | None = Field(
        None, description="The field of the row that holds the test cases; None for the task's answer."
    )
    continuous: bool = Field(
        False,
        description="The score is the share of the cases that pass; otherwise 1 where all pass, 0 where one doesn't.",
    )
    max_cases: int | None = Field(
        None, ge=1, description="Only the first so many cases of a task are run; None for all of them."
    )
    judge: Literal["final", "all", "answer"] = Field(
        "final",
        description="Where the program is looked for: in the last turn, in all turns, or in what an end flag matched. "
        "Thinking and tool calls are no part of it.",
    )
    code: Literal["fence", "text"] = Field(
        "fence",
        description="`fence` takes the last fenced block of Python, else the last one without a language; `text` takes "
        "all of the text.",
    )
    timeout: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Seconds of processor time that a case may take; on the clock it is three times as much and 5 s.",
    )
    memory_mb: int = Field(512, ge=64, description="Megabytes of memory that a case may use.")
    tolerance: float = Field(
        1e-6,
        ge=0,
        lt=1,
        description="Maximum relative difference of a decimal number from the expected one; absolute from 0. 0: none.",
    )
    concurrency: int | None = Field(
        None, ge=1, description="Cases that run at once, others wait; None for the number of processors."
    )

    def check_task(self, task: Task) -> None:
        """Raises DataError for a task without test cases, or with ones that can't be run."""
        read_cases(task, self.cases)
