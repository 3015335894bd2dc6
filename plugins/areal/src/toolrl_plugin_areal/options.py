"""Options of the areal plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from toolrl.builtin.rows import find_files
from toolrl.errors import DataError
from toolrl.types import Task
from toolrl_plugin_math.truth import gold_texts

RESULT_CHARS = 256
"""AReaL's limit of a result."""


class ArealTirDataOptions(BaseModel, extra="forbid"):
    """Options of the data set `areal_tir`."""

    path: str | list[str] = Field(
        min_length=1, description="A .jsonl, .json or .parquet file, a glob, or a list of these."
    )
    limit: int | None = Field(None, ge=1, description="Only the first so many rows.")
    environment: str | None = Field(None, description="The environment that the tasks run in.")

    def check_files(self) -> None:
        """Raises DataError for a path that finds no file."""
        find_files(self.path)


class ArealTirParserOptions(BaseModel, extra="forbid"):
    """Options of the parser `areal_tir`."""

    answer_unclosed: bool = Field(
        True,
        description="A call that isn't closed, and a closing tag without its opening, are answered with what was "
        "wrong. False: they are text, and end the episode like any turn without a call, as in AReaL.",
    )
    max_result_chars: int | None = Field(
        RESULT_CHARS,
        ge=2,
        description="Of a longer result the first and the last half of so many characters are shown, with `...` "
        "between them; null for no limit but that of the tool's policy.",
    )


class ArealToolOptions(BaseModel, extra="forbid"):
    """Options of the tool `areal_tool`."""

    target: str = Field(
        pattern=r"\A[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="`module:Class`, a class with what AReaL's BaseTool has; its `tool_type` is the tool's name.",
    )
    python_path: list[str] = Field(
        default_factory=list, description="Folders to import from, besides the one that the run starts in."
    )
    timeout: int = Field(30, ge=1, description="What the class is made with; `policy.timeout` ends a call anyway.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Further arguments of the class.")

    def check_files(self) -> None:
        """Raises DataError for a folder that isn't there."""
        for folder in self.python_path:
            if not Path(folder).expanduser().is_dir():
                raise DataError(f"python_path: there is no folder {folder!r} here")


class ArealTirRewardOptions(BaseModel, extra="forbid"):
    """Options of the reward `areal_tir`."""

    scaling: float = Field(
        1.0,
        allow_inf_nan=False,
        description="The value is (r + bias) * scaling, where r is 1 for a right answer, else 0.",
    )
    bias: float = Field(0.0, allow_inf_nan=False, description="See `scaling`; AReaL's example has -0.5 and 10.")
    tool_output: bool = Field(
        False,
        description="Also judge what tools answered and the calls themselves, as AReaL does: an answer that only a "
        "tool printed then counts as the model's.",
    )
    timeout: float = Field(5.0, gt=0, description="Seconds that one answer may take to judge; then it counts as wrong.")
    workers: int = Field(2, ge=1, le=64, description="Processes that judge, started when they are first needed.")

    def check_task(self, task: Task) -> None:
        """Raises RewardError for a task without an answer. Whether math-verify can read it shows when it judges."""
        gold_texts(task)
