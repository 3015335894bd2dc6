"""Options of the math plugin."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, model_validator

from toolrl.types import Task
from toolrl_plugin_math.quantity import true_numbers
from toolrl_plugin_math.truth import gold_texts

Kind = Literal["tiny_sum", "sum", "product", "long_product", "multiply_add", "word"]
KINDS: tuple[Kind, ...] = ("tiny_sum", "sum", "product", "long_product", "multiply_add", "word")


class JudgedTextOptions(BaseModel, extra="forbid"):
    """What all rewards here have in common."""

    correct: float = Field(1.0, description="Value of a correct answer.")
    wrong: float = Field(0.0, description="Value of a wrong one, or of none.")
    judge: Literal["final", "answer", "all"] = Field(
        "final",
        description="What is judged: the text of the final turn without reasoning and calls, what an end flag of the "
        "environment matched, or the text of all turns. Never what a tool answered.",
    )


class ExactOptions(JudgedTextOptions):
    """Options of the reward `exact`."""

    ignore_case: bool = Field(True, description="Upper and lower case are the same.")

    def check_task(self, task: Task) -> None:
        """Raises RewardError for a task without an answer."""
        gold_texts(task)


class Gsm8kRewardOptions(JudgedTextOptions):
    """Options of the reward `gsm8k`."""

    method: Literal["strict", "flexible"] = Field(
        "strict", description="strict: the number after the last `####`. flexible: else the last number of the text."
    )
    format_score: float | None = Field(
        None, description="Value of a wrong answer in the right form, a number after `####`; null for that of `wrong`."
    )

    def check_task(self, task: Task) -> None:
        """Raises RewardError for a task whose answer doesn't state one number."""
        true_numbers(task)


class MathOptions(JudgedTextOptions):
    """Options of the reward `math`."""

    boxed: bool = Field(False, description=r"Only a \boxed{…} counts; else also other mathematics and plain numbers.")
    timeout: float = Field(
        5.0, gt=0, description="Seconds that one answer may take to judge; then it counts as wrong, metric `timeout`."
    )
    workers: int = Field(2, ge=1, le=64, description="Processes that judge, started when they are first needed.")

    def check_task(self, task: Task) -> None:
        """Raises RewardError for a task without an answer. Whether math-verify can read it shows when it judges."""
        gold_texts(task)


class RewardToolOptions(BaseModel, extra="forbid"):
    """Options of the tool `calc_gsm8k_reward`."""

    penalty: float = Field(0.05, ge=0, description="Taken off for a call whose answer is no better than the last.")


class Gsm8kDataOptions(BaseModel, extra="forbid"):
    """Options of the data set `gsm8k`."""

    path: str = Field(
        min_length=1, description="A .jsonl, .json or .parquet file with `question` and `answer`, or a folder of them."
    )
    split: str = Field(
        "train",
        min_length=1,
        description="Where path is a folder: files `<split>.*` or `<split>-*`, or a folder.",
    )
    limit: int | None = Field(None, ge=1, description="Only the first so many problems.")
    instruction: str = Field(
        'Think step by step and end with "#### " and the final number.',
        description="Put after each question; empty for none.",
    )
    system_prompt: str | None = Field(None, description="A system message for each task, over the environment's.")
    environment: str | None = Field(None, description="The environment that the tasks run in.")

    def check_files(self) -> None:
        """Raises DataError where there is no file of the split."""
        from toolrl_plugin_math.files import find_split

        find_split(self.path, self.split)


class ArithmeticOptions(BaseModel, extra="forbid"):
    """Options of the data set `arithmetic`."""

    size: int = Field(10_000, ge=1, description="How many tasks.")
    split: Literal["train", "heldout"] = Field(
        "train", description="A tenth of all expressions, chosen by their hash, is held out from training."
    )
    seed: int = Field(0, ge=0, description="Task i is a function of seed, split, kinds and i alone.")
    kinds: list[Kind] = Field(
        list(KINDS),
        min_length=1,
        description="Drawn uniformly: a sum of digits, of three-digit numbers; a product of two- by two-digit, "
        "three- by two-digit numbers; a*b+c; the same in words.",
    )
    environment: str | None = Field(None, description="The environment that the tasks run in.")


class DemonstrationOptions(ArithmeticOptions):
    """Options of the data set `arithmetic_demos`."""

    call_share: float = Field(0.9, ge=0, le=1, description="Share of the tasks with tools that call the calculator.")
    random_result_share: float = Field(
        0.5, ge=0, le=1, description="Share of the calls with a random result, so that it has to be copied."
    )
    no_tool_share: float = Field(
        0.2, ge=0, le=1, description="Share of all tasks in an environment without tools, answered directly."
    )
    no_tool_environment: str | None = Field(None, description="The name of that environment.")
    tool: str = Field("calculator", min_length=1, description="The tool's name in a call.")

    @model_validator(mode="after")
    def _no_tool_environment_is_named(self) -> DemonstrationOptions:
        if self.no_tool_share > 0 and self.no_tool_environment is None:
            raise ValueError("no_tool_share is above 0: name the environment without tools as `no_tool_environment`")
        return self
