"""The frame of a run's config: every section, its fields, defaults and bounds.

The options of components are not here: each plugin brings its own model, and `toolrl.config.load` checks them in a
second pass. The trainer's plugin completes the sections `model`, `algorithm`, `trainer` and `sft`
(`toolrl.config.sections`).

A field's description is its documentation: the JSON Schema and the config reference are made from it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializeAsAny,
    field_validator,
    model_validator,
)

from toolrl.config.cluster import ClusterConfig
from toolrl.config.data import DataConfig as DataConfig
from toolrl.config.frame import ComponentUse, Frame, OldNames, Use, from_name
from toolrl.errors import ConfigError
from toolrl.parsing.flags import EndFlags

_NO_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")
"""Characters that no folder's name has."""
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


class Section(Frame):
    """A section of which core knows the fields below. The trainer's own model adds others and rejects unknown keys."""

    model_config = ConfigDict(extra="allow")


_Texts = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class MarkersUse(Frame):
    """The texts around a call of a tool."""

    start: _Texts = Field(description="Each of these opens a call.")
    end: _Texts = Field(description="Each closes one; with as many as in `start`, the one in the same place.")


class ToolUse(ComponentUse):
    """A toolset of an environment."""

    rename: dict[str, str] = Field(
        default_factory=dict, alias="as", description="New names for tools of this set, old name to new name."
    )
    policy: dict[str, Any] = Field(default_factory=dict, description="Policy of its calls: time limit, truncation …")
    weight: float = Field(1.0, allow_inf_nan=False, description="Weight of the tool's own reward.")
    markers: dict[str, MarkersUse] = Field(
        default_factory=dict,
        description="For parsers of tags, such as `tir`: by a tool's name, the texts around a call of it.",
    )


class RewardUse(ComponentUse):
    """A reward function of an environment."""

    name: str | None = Field(
        None, pattern=r"^[\w.-]+$", description="Name in metrics, `reward/NAME/mean`. Default: the component's."
    )
    weight: float = Field(1.0, allow_inf_nan=False, description="Weight of its value in the episode's reward.")
    timeout: float | None = Field(
        600.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds it may take for one episode, or one group, before the episode counts as failed; null for "
        "no limit.",
    )


class HistoryUse(ComponentUse):
    """A toolset that rewrites the history."""

    timeout: float = Field(1800.0, gt=0, allow_inf_nan=False, description="Seconds that it may take before one turn.")


HistoryUseField = Annotated[HistoryUse, BeforeValidator(from_name)]
ToolUseField = Annotated[ToolUse, BeforeValidator(from_name)]
RewardUseField = Annotated[RewardUse, BeforeValidator(from_name)]


class ModelFrame(Section):
    """The model to train."""

    path: str = Field(
        min_length=1,
        description="A folder in Hugging Face layout, with its tokenizer; a run's folder, for its last checkpoint "
        "(`runs/NAME:best` or `runs/NAME:30` for another); or `owner/name` of a model hub that can be reached.",
    )
    trust_remote_code: bool = Field(False, description="Run code that the model's folder brings along.")


class TeacherConfig(Frame):
    """A model that scores what the policy samples."""

    model: str | None = Field(
        None,
        min_length=1,
        description="As model.path: loaded in the trainer's process for an engine that computes there. None where the "
        "engine is a server that holds the model.",
    )
    engine: Use = Field(
        default_factory=lambda: ComponentUse(use="transformers"), description="An engine that scores given tokens."
    )


class DistillationFrame(Section):
    """On-policy distillation."""

    teachers: dict[str, TeacherConfig] = Field(
        min_length=1,
        description="By environment; `default` teaches all others. The policy's tokenizer has to be theirs.",
    )


class AlgorithmFrame(Section):
    """The objective."""

    group_size: int = Field(8, ge=1, description="Episodes of one task, compared with each other.")
    dynamic_sampling: bool = Field(
        False,
        description="Set groups aside whose filter_metric is equal in all episodes, and sample further tasks in their "
        "place until the step is full.",
    )
    advantage: Use | None = Field(
        None, description="An advantage estimator of a plugin, in the place of baseline, scale, credit and discount."
    )
    policy_loss: Use | None = Field(
        None, description="A policy loss of a plugin, in the place of surrogate, ratio and the clip range."
    )
    distillation: DistillationFrame | None = Field(None, description="Learn from teachers, token by token.")


def _known_end_flag(flag: str) -> str:
    try:
        EndFlags([flag])
    except ConfigError as error:
        raise ValueError(error.message) from error
    return flag


class EnvironmentConfig(Frame):
    """A bundle of tools, parser, chat format and rewards; a task picks one by name."""

    parser: Use = Field(default_factory=lambda: ComponentUse(use="hermes"), description="Parser of tool calls.")
    chat_format: Use = Field(
        default_factory=lambda: ComponentUse(use="template"), description="How messages become tokens."
    )
    harness: Use | None = Field(
        None, description="What plays the episodes, in the place of toolrl's turn loop; null for the turn loop."
    )
    system_prompt: str | None = Field(
        None, description="Put before each task's messages, unless these begin with a system message."
    )
    tools: list[ToolUseField] = Field(default_factory=list, description="Toolsets.")
    history: list[HistoryUseField] = Field(
        default_factory=list, description="What may rewrite the history before a turn, in order."
    )
    rewards: list[RewardUseField] = Field(default_factory=list, description="Reward functions.")
    end_flags: list[Annotated[str, AfterValidator(_known_end_flag)]] = Field(
        default_factory=list,
        description="The answer that ends an episode: `answer` for <answer>…</answer>, `boxed` for \\boxed{…}, or "
        "a regular expression whose first group is the answer.",
    )
    stop_at_answer: bool = Field(
        False,
        description="End generation where an end flag closes. For base models; a chat model learns to end its turn.",
    )
    max_turns: int = Field(4, ge=1, description="Assistant turns in an episode. Calls of the last turn still run.")
    max_invalid_turns: int | None = Field(
        None,
        ge=1,
        description="An episode ends as `invalid_calls` after so many turns in a row none of whose calls could be run: "
        "unreadable ones, tools that aren't there, wrong arguments. null: such turns only count in max_turns.",
    )
    call_cost: float = Field(0.0, ge=0, allow_inf_nan=False, description="Taken off the reward for each call.")
    untrained_roles: list[str] = Field(
        default_factory=list,
        description="Roles under which a tool or a harness asks the model, untrained: a simulated user.",
    )

    @model_validator(mode="after")
    def _one_loop(self) -> Self:
        for key in ("history", "max_invalid_turns") if self.harness is not None else ():
            if getattr(self, key):
                raise ValueError(f"`{key}` is of toolrl's turn loop, and a `harness` takes its place: leave one out")
        return self


class RolloutConfig(Frame):
    """How episodes are sampled."""

    old_names: ClassVar[OldNames] = {"oversampling": 1}

    temperature: float = Field(1.0, gt=0, allow_inf_nan=False, description="Of sampling and of the trained policy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus; below 1 trains a policy other than the sampled one.")
    top_k: int = Field(0, ge=0, description="0 for no limit.")
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Leaves out tokens with less than this share of the likeliest one's probability; 0 for none.",
    )
    keep_sampling_masks: bool = Field(
        False,
        description="Record which tokens top_p, top_k and min_p left to draw each one from, and train on exactly the "
        "distribution that was sampled (arXiv 2512.02556). Engine: transformers.",
    )
    max_turn_tokens: int = Field(512, ge=1, description="Sampled tokens in one turn at most.")
    max_episode_tokens: int | None = Field(
        None, ge=2, description="All tokens of an episode at most; None for the model's context."
    )
    concurrency: int = Field(256, ge=1, description="Episodes in flight; with rollout workers, in each of them.")
    max_staleness: int = Field(
        0,
        ge=0,
        description="Versions that the weights may have moved on since a token was sampled, when it is trained on. 0: "
        "rollout and training take turns; above, they overlap.",
    )
    replay: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="With max_staleness: the share of a step's groups that were trained on before, where there are any "
        "that are young enough.",
    )
    max_error_rate: float = Field(
        0.2,
        ge=0,
        le=1,
        description="A run stops when more than this share of a step's episodes failed, or of its tool calls crashed.",
    )

    @property
    def truncates(self) -> bool:
        """Whether some tokens are left out when one is sampled."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


def _steps_or_time(value: Any) -> Any:
    value = int(value) if isinstance(value, str) and value.isdecimal() else value
    if (type(value) is int and value >= 0) or save_seconds(value) is not None:
        return value
    raise ValueError("expected a number of steps, or a time such as 15min, 2h or 90s")


def save_seconds(every: Any) -> float | None:
    """A `save_every` in seconds; None where it counts steps."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", str(every))
    return float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]] if found else None


SaveEvery = Annotated[int | str, BeforeValidator(_steps_or_time)]
SAVE_EVERY = (
    "Write a checkpoint each so many steps, or when a time such as 15min, 2h or 90s has passed since the last; 0: "
    "at the end only."
)


class TrainerFrame(Section):
    """The training loop."""

    use: str = Field("torch", min_length=1, description="Which trainer: the name of one that a plugin brings.")
    steps: int = Field(100, ge=1, description="Rollout and update this often.")
    prompts_per_step: int = Field(8, ge=1, description="Tasks of one step; group_size episodes each.")
    save_every: SaveEvery = Field("15min", description=SAVE_EVERY)
    keep_checkpoints: int = Field(2, ge=1, description="Older ones are deleted.")
    keep_best: bool | str = Field(
        False,
        description="Keep the best evaluation's checkpoint too, as `checkpoints/best`. true: by accuracy; else the "
        "metric of evaluations to go by, such as eval/reward/mean; higher is better.",
    )

    @property
    def best_by(self) -> str | None:
        """The metric of evaluations that `keep_best` names; None where it is false."""
        if isinstance(self.keep_best, str):
            return self.keep_best.removeprefix("eval/")
        return "accuracy" if self.keep_best else None

    def check_sharded(self) -> None:
        """Raises ConfigError for a setting of the trainer that isn't supported where weights are spread over ranks."""


class EvaluationConfig(Frame):
    """Evaluation during a run and by `toolrl eval`."""

    every: int = Field(0, ge=0, description="Evaluate each so many steps; 0 for at start and end only.")
    tasks: int | None = Field(
        None,
        ge=1,
        description="The first so many tasks, of several data sets in proportion to their rows; None for all.",
    )
    episodes_per_task: int = Field(1, ge=1, description="k of avg@k and pass@k.")
    temperature: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="None for the rollout's; 0 is greedy."
    )
    top_p: float | None = Field(None, gt=0, le=1, description="None for the rollout's; 1 for no limit.")
    top_k: int | None = Field(None, ge=0, description="None for the rollout's; 0 for no limit.")
    min_p: float | None = Field(None, ge=0, le=1, description="None for the rollout's; 0 for no limit.")


class SftFrame(Section):
    """`toolrl sft`: supervised fine-tuning on assistant tokens."""

    data: Use | None = Field(None, description="Data set whose messages hold the assistant's turns.")
    from_run: str | None = Field(
        None,
        description="A run folder whose episodes, but those of evaluations, are the demonstrations, instead of data.",
    )


class RunConfig(Frame):
    """The run's folder."""

    name: str = Field("run", min_length=1, description="Name of its folder; where it isn't given, the config file's.")
    dir: str = Field("runs", description="Folder of run folders.")
    save_episodes: bool = Field(True, description="Keep every episode, tokens included, in the run folder.")

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        """A name that leads out of `dir`, or that no file system takes, is a mistake."""
        if name in (".", "..") or _NO_NAME.search(name) or len(name.encode()) > 200:
            raise ValueError("expected the name of one folder: no slash, no control character, at most 200 bytes")
        return name


class Config(Frame):
    """A whole run."""

    _old_keys: tuple[str, ...] = PrivateAttr(())

    @property
    def old_keys(self) -> tuple[str, ...]:
        """A line for each key that the file calls by an old name."""
        return self._old_keys

    model: SerializeAsAny[ModelFrame]
    data: DataConfig = Field(default_factory=DataConfig)
    environments: dict[str, EnvironmentConfig] = Field(
        min_length=1, description="By name; a task picks one by its `environment`, else `default` or the only one."
    )
    engine: Use = Field(default_factory=lambda: ComponentUse(use="transformers"), description="Rollout engine.")
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    algorithm: SerializeAsAny[AlgorithmFrame] = Field(default_factory=lambda: AlgorithmFrame())
    trainer: SerializeAsAny[TrainerFrame] = Field(default_factory=lambda: TrainerFrame())
    evaluation: EvaluationConfig = Field(default_factory=lambda: EvaluationConfig())
    sft: SerializeAsAny[SftFrame] | None = Field(None, description="Settings of `toolrl sft`.")
    observers: list[Use] = Field(
        default_factory=lambda: [ComponentUse(use="console")], description="Observers of the run's events."
    )
    run: RunConfig = Field(default_factory=lambda: RunConfig())
    cluster: ClusterConfig = Field(
        default_factory=lambda: ClusterConfig(), description="Processes that the run is spread over."
    )
    seed: int = Field(0, ge=0, description="Of data order, sampling, tools and torch.")
    deterministic: bool = Field(
        False,
        description="The same metrics and weights, bit for bit, whenever the run is repeated, or killed and resumed, "
        "on one machine with one number of threads. Episodes wait for each other; tools must answer the same to the "
        "same arguments.",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    threads: int | None = Field(None, ge=1, description="CPU threads of torch; None for torch's own choice.")

    @model_validator(mode="after")
    def _fit(self) -> Config:
        rollout = self.rollout
        if not _DEVICE.fullmatch(self.device):
            raise ValueError(f"device: {self.device!r} is no device; set auto, cpu, cuda or cuda:N")
        if name := next(
            (name for name in self.environments if re.search("/(stderr|interval/low|interval/high)$", name)), None
        ):
            raise ValueError(f"environments.{name}: metrics that end so are errors of other metrics; rename it")
        if self.deterministic and rollout.max_staleness:
            raise ValueError("deterministic: needs rollout and training to take turns; set rollout.max_staleness to 0")
        if self.deterministic and self.cluster.rollout_workers:
            raise ValueError(
                "deterministic: episodes in several processes can't wait for each other; set cluster.rollout_workers "
                "to 0"
            )
        if unknown := list(self.data.unknown_environments(self.environments)):
            raise ValueError("; ".join(unknown))
        if self.trainer.keep_best and self.data.eval is None:
            raise ValueError("trainer.keep_best: needs evaluations, and data.eval names no data set")
        if rollout.replay and not rollout.max_staleness:
            raise ValueError("rollout.replay: a group that was trained on is older than max_staleness 0 allows; set it")
        return self
