"""The sections of a config that the trainer `torch` brings: `model`, `algorithm`, `trainer` and `sft`.

A field's description is its documentation: the JSON Schema and the config reference are made from it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from toolrl.config.frame import Frame, OldNames
from toolrl.config.model import SAVE_EVERY, Config, ModelFrame, SaveEvery, SftFrame, TrainerFrame
from toolrl.errors import ConfigError
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.model_path import missing_model

_SHARE_PREFIX = (
    "Compute what sequences have in common at the start, such as a group's prompt, once in an update. auto: where the "
    "model allows it, with a warning where it doesn't; true: an error where it doesn't."
)


_Name = Annotated[str, Field(min_length=1)]
_Decay = Annotated[float, Field(ge=0, lt=1)]


class LoraConfig(Frame):
    """Train low-rank additions to linear layers (arXiv 2106.09685) and leave the model's own weights as they are."""

    old_names: ClassVar[OldNames] = {"dropout": 0, "rslora": False}

    rank: int = Field(16, ge=1, description="r: columns of A and rows of B of each addition.")
    alpha: float = Field(32.0, gt=0, allow_inf_nan=False, description="An addition counts alpha / rank times.")
    target_modules: Annotated[str, Field(min_length=1)] | Annotated[list[_Name], Field(min_length=1)] = Field(
        "all-linear",
        description="Which linear layers: all-linear (all but the head; a warning names the weights that are no linear "
        "layers, such as stacked experts), names such as [q_proj, v_proj], each of which has to be that of a layer, or "
        "a regular expression that a layer's whole path matches.",
    )


class ModelConfig(ModelFrame, Frame):
    """The model to train."""

    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="auto: bfloat16 on cuda, and on a CPU with instructions for it where the model is stored in it; "
        "else float32.",
    )
    attention: str | None = Field(None, description="transformers' attn_implementation; None for its default.")
    gradient_checkpointing: Literal["auto", True, False] = Field(
        "auto", description="Recompute each layer's activations in the backward pass. auto: on cuda."
    )
    compile: bool = Field(
        False,
        description="Compile the decoder layers of policy and reference for updates (torch.compile); the first step "
        "takes longer. On a CPU the fused layers aren't used then. Not run on a GPU yet.",
    )
    lora: LoraConfig | None = Field(
        None, description="Train a LoRA adapter instead of all weights. `{}` takes its defaults; needs toolrl[lora]."
    )


class OptimizerConfig(Frame):
    """AdamW and its schedule."""

    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        "adamw",
        description="adamw_8bit: AdamW's two averages in 8 bits by bitsandbytes, 2 bytes a parameter in place of 8, in "
        "one process and without offload of the optimizer; needs toolrl-plugin-torch[bitsandbytes]. Not run on a GPU "
        "yet.",
    )
    learning_rate: float = Field(
        1e-6, gt=0, allow_inf_nan=False, description="Its highest value, reached after the warm-up."
    )
    betas: tuple[_Decay, _Decay] = Field((0.9, 0.95), description="Decay of AdamW's two running averages.")
    eps: float = Field(1e-8, gt=0, description="Added to AdamW's denominator.")
    weight_decay: float = Field(0.0, ge=0, description="On matrices only.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="After the warm-up, down to min_rate."
    )
    warmup_steps: Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)] = Field(
        0, description="Steps over which the rate rises from 0; below 1, a share of all steps."
    )
    min_rate: float = Field(
        0.0, ge=0, le=1, description="The share of the rate that a schedule falls to, one step after the last."
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")

    @model_validator(mode="after")
    def _streams(self) -> OptimizerConfig:
        if self.optimizer == "adamw_8bit" and "optimizer" in getattr(self, "offload", ()):
            raise ValueError("offload: adamw_8bit's averages can't wait on the CPU; take one of the two out")
        return self


class TrainerConfig(TrainerFrame, OptimizerConfig):
    """The training loop, and the update of each step."""

    updates_per_step: int = Field(1, ge=1, description="Mini-batches that one step's episodes are split into.")
    epochs_per_step: int = Field(
        1, ge=1, description="Passes over a step's mini-batches, each of which is an optimizer step."
    )
    tokens_per_microbatch: int = Field(16384, ge=1, description="Token budget of one forward pass, padding included.")
    share_prefix: Literal["auto", True, False] = Field("auto", description=_SHARE_PREFIX)
    sequence_parallel: int = Field(
        1,
        ge=1,
        description="Ranks that compute each micro-batch together, a share of its tokens each, for contexts beyond one "
        "GPU (Ulysses). Divides the number of ranks and the model's attention heads; needs a model for which "
        "share_prefix works.",
    )
    offload: list[Literal["optimizer", "reference", "critic"]] = Field(
        default_factory=list,
        description="What waits on the CPU between its uses, where the model is on a GPU: AdamW's averages and "
        "masters, the KL term's reference, the critic. Makes room for rollout, and takes the time of the transfers.",
    )
    router_replay: bool = Field(
        False,
        description="Have the policy's routers choose the experts that the engine took (arXiv 2510.11370), for models "
        "with experts; needs an engine that records them, such as transformers with return_routes. In one process, "
        "without model.compile.",
    )

    def check_sharded(self) -> None:
        whole = [part for part in self.offload if part != "optimizer"]
        for unfit, what in (
            (whole, f"offload: {', '.join(whole)}"),
            (self.optimizer != "adamw", f"optimizer: {self.optimizer}"),
            (self.router_replay, "router_replay: true"),
        ):
            if unfit:
                raise ConfigError(
                    f"trainer.{what} is not supported where weights are spread over ranks",
                    hint="Leave it out, or train in one process.",
                )

    @model_validator(mode="after")
    def _cuts_trees(self) -> TrainerConfig:
        if self.sequence_parallel > 1 and self.share_prefix is False:
            raise ValueError("sequence_parallel: cuts rows of shared prefixes; set `share_prefix` to auto")
        return self


class ProbeConfig(Frame):
    """Evaluate while fine-tuning, and stop when it is good enough."""

    every: int = Field(20, ge=1, description="Steps between probes.")
    accuracy: float = Field(
        gt=0, le=1, description="Stop at this accuracy; an error if it isn't reached within the steps."
    )


class SftConfig(SftFrame, OptimizerConfig):
    """`toolrl sft`: supervised fine-tuning on assistant tokens."""

    min_reward: float = Field(1.0, description="With from_run: only trajectories whose role got at least this reward.")
    steps: int = Field(100, ge=1, description="Optimizer steps.")
    batch_size: int = Field(64, ge=1, description="Conversations in one optimizer step.")
    save_every: SaveEvery = Field("15min", description=SAVE_EVERY)
    keep_checkpoints: int = Field(1, ge=1, description="Older ones are deleted.")
    probe: ProbeConfig | None = Field(None, description="Evaluate on data.eval and stop early.")
    tokens_per_microbatch: int = Field(16384, ge=1, description="Token budget of one forward pass, padding included.")
    share_prefix: Literal["auto", True, False] = Field("auto", description=_SHARE_PREFIX)
    offload: list[Literal["optimizer"]] = Field(default_factory=list, description="As trainer.offload.")

    @model_validator(mode="after")
    def _one_source(self) -> SftConfig:
        if (self.data is None) == (self.from_run is None):
            raise ValueError("give exactly one of `data` and `from_run`")
        return self


class TorchOptions(Frame):
    """The sections that the trainer `torch` checks."""

    model: ModelConfig
    algorithm: AlgorithmConfig = Field(default_factory=lambda: AlgorithmConfig(preset="grpo"))
    trainer: TrainerConfig = Field(default_factory=lambda: TrainerConfig())
    sft: SftConfig | None = Field(None, description="Settings of `toolrl sft`.")

    @classmethod
    def remarks(cls, config: Config) -> Iterator[str]:
        """Remarks on settings whose effect may surprise, a line each."""
        algorithm: Any = config.algorithm
        stale = config.rollout.max_staleness
        if stale and algorithm.importance is None and algorithm.old_logprobs != "sampled":
            yield (
                f"rollout.max_staleness {stale}: stale samples are trained on as if the policy had just drawn them; "
                "set `algorithm.importance: {}` to weigh them"
            )
        yield from _idle_names(config)

    @classmethod
    def missing(cls, config: Config, data: Collection[str]) -> Iterator[str]:
        """Needs of the sections that aren't met where these data sets are used: the model, teachers, peft."""
        model: Any = config.model
        if (problem := missing_model(model.path)) is not None:
            yield problem
        if "data.train" in data:
            yield from _missing_teachers(config)
        algorithm: Any = config.algorithm
        rounded = config.engine.options.get("quantization")
        if rounded and algorithm.importance is None and algorithm.old_logprobs != "sampled":
            yield (
                f"engine.options.quantization: {rounded} samples from rounded weights, and nothing weighs its samples: "
                "set `algorithm.importance: {}`, or leave it out"
            )
        if model.lora is not None and importlib.util.find_spec("peft") is None:
            yield "model.lora: needs peft, which isn't installed: pip install 'toolrl[lora]'"
        if getattr(config.trainer, "router_replay", False):
            if not config.engine.options.get("return_routes"):
                yield (
                    f"trainer.router_replay: the engine {config.engine.use} records no routes; take "
                    "`engine: {use: transformers, options: {return_routes: true}}`"
                )
            if model.compile:
                yield "trainer.router_replay: compiled layers can't replay routes; set model.compile to false"
        for name in ("trainer", "sft"):
            wanted = getattr(getattr(config, name), "optimizer", "adamw")
            if wanted == "adamw_8bit" and importlib.util.find_spec("bitsandbytes") is None:
                yield (
                    f"{name}.optimizer: adamw_8bit needs bitsandbytes, which isn't installed: "
                    "pip install 'toolrl-plugin-torch[bitsandbytes]'"
                )


def _idle_names(config: Config) -> Iterator[str]:
    """Entries of lists and mappings that nothing of the run uses."""
    algorithm: Any = config.algorithm
    offload = getattr(config.trainer, "offload", ())
    custom = algorithm.advantage is not None or algorithm.policy_loss is not None  # They may ask for a reference.
    if "reference" in offload and not algorithm.kl_coef and algorithm.reference is None and not custom:
        yield "trainer.offload: `reference` has no effect, as algorithm.kl_coef is 0 and there is no reference"
    if "critic" in offload and algorithm.baseline != "critic":
        yield f"trainer.offload: `critic` has no effect, as algorithm.baseline is {algorithm.baseline}"
    teachers = algorithm.distillation.teachers if algorithm.distillation is not None else {}
    if "default" in teachers and set(config.environments) <= set(teachers) - {"default"}:
        yield "algorithm.distillation.teachers.default: no effect, as each environment has a teacher of its own"


def _missing_teachers(config: Config) -> Iterator[str]:
    """What is wrong with the teachers of distillation."""
    distillation: Any = config.algorithm.distillation
    if distillation is None:
        return
    where, teachers = "algorithm.distillation.teachers", distillation.teachers
    for name, teacher in teachers.items():
        if name not in config.environments and name != "default":
            yield f"{where}.{name}: there is no environment of this name; there is {', '.join(config.environments)}"
        if teacher.model is None and teacher.engine.use in ("transformers", "transformers/transformers"):
            yield f"{where}.{name}: it names no model; give `model`, or the `engine` of a server that holds one"
        if teacher.model is not None and (problem := missing_model(teacher.model)) is not None:
            yield problem.replace("model.path", f"{where}.{name}.model")


def check_trainer(config: Config, command: str) -> None:
    """Raise ConfigError for a config of another trainer than `torch`."""
    if not isinstance(config.trainer, TrainerConfig):
        raise ConfigError(
            f"trainer.use is {config.trainer.use!r}, and `toolrl {command}` is a command of the trainer torch",
            hint="Set it to torch, for example by --set trainer.use=torch.",
        )
