"""Options of the geo3k plugin."""

from __future__ import annotations

from pydantic import BaseModel, Field

from toolrl.errors import RewardError
from toolrl.types import Task
from toolrl_plugin_geo3k.files import ENDINGS
from toolrl_plugin_math.files import find_split

INSTRUCTION = (
    "You FIRST think about the reasoning process as an internal monologue and then provide the final answer. The "
    "reasoning process MUST BE enclosed within <think> </think> tags. The final answer MUST BE put in \\boxed{}."
)
SYSTEM_PROMPT = (
    "You are a math expert. You are given a question and you need to solve it step by step. Reason step by step before "
    "any tool call. You should use the `calc_geo3k_reward` tool after solving the question, at least once before the "
    "final answer, and refine your answer if necessary."
)


class GeometryJudgeOptions(BaseModel, extra="forbid"):
    """How answers are compared."""

    timeout: float = Field(5.0, gt=0, description="Seconds that one answer may take to judge; then it counts as wrong.")
    workers: int = Field(2, ge=1, le=64, description="Processes that judge, started when they are first needed.")


class Geo3kToolOptions(GeometryJudgeOptions):
    """Options of the tool `calc_geo3k_reward`."""

    penalty: float = Field(0.05, ge=0, description="Taken off for a call whose answer is no better than the last.")


class Geo3kRewardOptions(GeometryJudgeOptions):
    """Options of the reward `geo3k`."""

    format_score: float = Field(
        0.1, ge=0, le=1, description="The form's share of the reward; the answer's is what is left of 1."
    )

    def check_task(self, task: Task) -> None:
        """Raises RewardError for a task without an answer."""
        if task.answer is None or not str(task.answer).strip():
            raise RewardError(f"task {task.id!r} has no answer to compare with", hint="Its row needs the ground truth.")


class Geo3kDataOptions(BaseModel, extra="forbid"):
    """Options of the data set `geo3k`."""

    path: str = Field(
        min_length=1,
        description="A file (.parquet, .jsonl, .json or .arrow), or a folder in which `split` names files or a folder: "
        "as a hub's copy, as the library `datasets` saves it, or as `toolrl geo3k data` writes it.",
    )
    split: str = Field("train", min_length=1, description="Where path is a folder: train, validation or test.")
    limit: int | None = Field(None, ge=1, description="Only the first so many problems.")
    instruction: str = Field(INSTRUCTION, description="Put after each problem; empty for none.")
    system_prompt: str | None = Field(SYSTEM_PROMPT, description="A system message for each task; null for none.")
    environment: str | None = Field(None, description="The environment that the tasks run in.")

    def check_files(self) -> None:
        """Raises DataError where there is no file of the split."""
        find_split(self.path, self.split, endings=ENDINGS)
