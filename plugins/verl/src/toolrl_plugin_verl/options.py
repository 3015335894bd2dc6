"""Options of the verl plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PrivateAttr, model_validator

from toolrl.builtin.rows import find_files
from toolrl.config.model import Config
from toolrl.errors import DataError, RewardError
from toolrl.types import Task
from toolrl_common.other_plugins import options_of_plugin
from toolrl_common.references import kept
from toolrl_plugin_verl.imports import check_module
from toolrl_plugin_verl.tool_yaml import read_tool_yaml

DELEGATED = {"search_r1": "search/search_r1", "sandbox_fusion": "sandbox-fusion/sandbox_fusion"}
"""Scorers that are rewards of other plugins."""


class VerlDatasetOptions(BaseModel, extra="forbid"):
    """Options of the data set `verl`."""

    path: str | list[str] = Field(
        min_length=1, description="A .parquet, .jsonl or .json file, a glob, or a list of these."
    )
    limit: int | None = Field(None, ge=1, description="Only the first so many rows (verl: train_max_samples).")
    prompt_key: str = Field("prompt", min_length=1, description="Column of the messages.")
    image_key: str = Field("images", min_length=1, description="Column of the images.")
    video_key: str = Field("videos", min_length=1, description="Column of the videos.")
    reward_fn_key: str = Field(
        "data_source", min_length=1, description="Column of the data source, which picks the scorer."
    )
    environment: str | None = Field(None, description="The environment of rows that `environments` doesn't route.")
    environments: dict[str, str] = Field(
        default_factory=dict,
        description="Value of the row's `agent_name`, or else of its data source, to the environment it runs in.",
    )

    def check_files(self) -> None:
        """Raises DataError for a path that finds no file."""
        find_files(self.path)

    def misfits(self, config: Config) -> Iterator[str]:
        """Routes to environments that the config doesn't have."""
        for value, name in self.environments.items():
            if name not in config.environments:
                known = ", ".join(config.environments)
                yield (
                    f"options.environments of a data set `verl`: {value!r} is routed to the environment {name!r}; "
                    f"there is {known}"
                )


class VerlToolOptions(BaseModel, extra="forbid"):
    """Options of the toolset `verl`."""

    tool_config_path: str | None = Field(
        None, min_length=1, description="A tool YAML of verl: `tools: [{class_name, config, tool_schema}]`."
    )
    function_tool_path: str | None = Field(
        None, min_length=1, description="A Python file whose functions are marked with @function_tool."
    )
    python_path: list[str] = Field(
        default_factory=list,
        description="Folders to look for the tools' modules in, after what is installed and the current folder.",
    )
    step_rewards: bool = Field(
        True,
        description="Add what `execute` returns as reward to the episode's. verl doesn't: there it only reaches "
        "compute_score, as extra_info['tool_rewards'], which it does here in any case.",
    )

    @model_validator(mode="after")
    def _some_tools(self) -> VerlToolOptions:
        if self.tool_config_path is None and self.function_tool_path is None:
            raise ValueError("no tools are named: give tool_config_path, function_tool_path, or both")
        return self

    def check_files(self) -> None:
        """Raises DataError for a file that isn't there, ConfigError for a tool YAML or a class that can't be used."""
        check_file("tool_config_path", self.tool_config_path)
        check_file("function_tool_path", self.function_tool_path)
        check_folders("python_path", self.python_path)
        for entry in read_tool_yaml(self.tool_config_path, kept) if self.tool_config_path else ():
            if entry.type == "native" and entry.class_name is not None:
                check_module(entry.class_name, self.python_path, entry.place)


class SandboxFusionOptions(BaseModel, extra="forbid"):
    """verl's `sandbox_fusion:`, for rows whose programs are run against test cases."""

    url: str = Field(min_length=1, description="Address of the sandbox.")
    max_concurrent: int = Field(64, ge=1, description="Test cases under way at once.")
    memory_limit_mb: int = Field(1024, ge=-1, description="MiB of memory that a program may take; -1 for no limit.")


class VerlRewardOptions(BaseModel, extra="forbid"):
    """Options of the reward `verl`."""

    path: str | None = Field(
        None,
        min_length=1,
        description="A Python file with a compute_score of your own (verl: custom_reward_function.path); null scores "
        "by the row's data source.",
    )
    name: str = Field("compute_score", min_length=1, description="The function's name in it.")
    reward_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Further keyword arguments of the function."
    )
    scorers: dict[str, Literal["gsm8k", "math", "math_dapo", "geo3k", "search_r1", "sandbox_fusion"]] = Field(
        default_factory=dict, description="Data source to scorer, over verl's own table; `*` for all others."
    )
    method: Literal["strict", "flexible"] = Field(
        "strict", description="Of the scorer gsm8k: the number after `####`, or else the last number of the text."
    )
    format_score: float = Field(0.1, ge=0, le=1, description="Of the scorer geo3k: the share that the form counts.")
    solution: Literal["model", "response"] = Field(
        "model",
        description="What is scored: what the model wrote, or, as verl does, everything after the prompt, what tools "
        "answered included.",
    )
    sandbox_fusion: SandboxFusionOptions | None = Field(
        None, description="For the data sources codecontests, apps, codeforces and taco."
    )
    timeout: float = Field(5.0, gt=0, description="Seconds that mathruler may take for one answer.")
    _others: dict[str, Any] = PrivateAttr(default_factory=dict)
    """Options of the scorers of other plugins."""

    @model_validator(mode="after")
    def _one_way(self) -> VerlRewardOptions:
        if self.path is not None and self.scorers:
            raise ValueError("scorers has no effect beside `path`, whose function scores every data source")
        if self.path is None and self.reward_kwargs:
            raise ValueError("reward_kwargs needs `path`: they are arguments of a function of your own")
        return self

    def check_files(self) -> None:
        """Raises DataError for a file that isn't there."""
        check_file("path", self.path)

    def check_task(self, task: Task) -> None:
        """Raises RewardError for a task that has no ground truth, or a data source that nothing scores; whatever the
        scorer of another plugin raises. A function of the user's may score any."""
        if self.path is not None:
            return
        scorer = self.scorer(task)
        if scorer in DELEGATED:
            if scorer not in self._others:
                self._others[scorer] = options_of_plugin("rewards", *self.delegate(scorer))
            self._others[scorer].check_task(adapted(task, scorer))

    def delegate(self, scorer: str) -> tuple[str, dict[str, Any], Callable[[str], RewardError]]:
        """The name of another plugin's reward, its options, and the error where it isn't installed. Raises RewardError
        where they lack something."""
        name = DELEGATED[scorer]
        plugin, options = name.partition("/")[0], dict[str, Any]()
        if scorer == "sandbox_fusion":
            if self.sandbox_fusion is None:
                raise RewardError(
                    "programs are scored in a sandbox, and the option `sandbox_fusion` names none",
                    hint="Add `sandbox_fusion: {url: …}` to the reward's options.",
                )
            given = self.sandbox_fusion.model_dump(exclude={"url"})
            options = {**given, "sandbox_fusion_url": self.sandbox_fusion.url, "continuous": True}

        def missing(message: str) -> RewardError:
            return RewardError(
                f"the scorer {scorer!r} is the reward {name!r} of the plugin {plugin!r}: {message}",
                hint=f"pip install toolrl-plugin-{plugin}, or give a function of your own by `path`.",
            )

        return name, options, missing

    def scorer(self, task: Task) -> str:
        """The name of what scores a task by its data source. Raises RewardError."""
        from toolrl_plugin_verl.utils.reward_score.default import KNOWN, scorer_of

        source = task.extra.get("data_source")
        found = scorer_of(source, self.scorers)
        if found is None:
            raise RewardError(
                f"task {task.id!r}: nothing scores the data_source {source!r}; known are {', '.join(KNOWN)}",
                hint="Give a function of your own by `path`, or name a scorer: `scorers: {your_source: math}`.",
            )
        answer = task.answer
        if answer is None or (isinstance(answer, float) and answer != answer):  # NaN is an empty cell
            raise RewardError(f"task {task.id!r} has no reward_model.ground_truth to compare with (got {answer!r:.80})")
        return found


def adapted(task: Task, scorer: str) -> Task:
    """The task with its answer in the form that the other plugin's reward reads."""
    if scorer == "search_r1" and isinstance(task.answer, Mapping) and "target" in task.answer:
        return replace(task, answer=task.answer["target"])
    return task


class VerlDumpOptions(BaseModel, extra="forbid"):
    """Options of the observer `verl_dump`."""

    rollout_data_dir: str | None = Field(
        None, description="Folder of `<step>.jsonl` for training; null for `rollout_data` in the run's folder."
    )
    validation_data_dir: str | None = Field(
        None, description="Folder of the same for evaluations; null for no dump of them."
    )


def check_folders(option: str, folders: list[str]) -> None:
    """Raises DataError for a folder that isn't there."""
    for folder in folders:
        if not Path(folder).expanduser().is_dir():
            raise DataError(f"{option}: there is no folder {folder!r} here")


def check_file(option: str, path: str | None) -> None:
    """Raises DataError for a file that isn't there; None names none."""
    if path is not None and not Path(path).expanduser().is_file():
        raise DataError(f"{option}: there is no file {path!r} (in {Path.cwd()})")
