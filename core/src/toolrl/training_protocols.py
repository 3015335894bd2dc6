"""Protocols of training: a plugin of the kind `trainers` gives a model, and trains it from episodes; others give
advantages and losses.

Core knows no tensors. It assembles a run, hands the model's weights to the engine as a `WeightSource`, and leaves the
updates, and when to save, to the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from toolrl.types import Group

if TYPE_CHECKING:
    from toolrl.assembly import Assembly
    from toolrl.config.load import LoadedConfig
    from toolrl.loop.ranks import Ranks
    from toolrl.rollouts.source import FailurePolicy, RolloutWorkers
    from toolrl.tools.endpoints import ClusterLimits


@runtime_checkable
class WeightSource(Protocol):
    """The trainer's weights, in whichever form an engine can take them.

    Where ranks share the weights, all of them call each method together. Or the first one hands the weights over alone:
    between its `lead` and its `release` the others `follow`, and take part in what it calls."""

    version: int

    def module(self, *, data: bool = True) -> Any:
        """A torch module for an engine that computes with it: the trainer's own, or where ranks share the weights a
        whole copy, which each call brings up to date. Without `data` parameters may be on the meta device."""
        ...

    def tensors(self, *, merged: bool = True) -> Iterator[tuple[str, Any]]:
        """Name, as a checkpoint has it, and whole tensor, each made when it is reached; tied ones once. An adapter is
        merged in, or left out."""
        ...

    def trained_tensors(self) -> Iterator[tuple[str, Any]]:
        """Name, as the module has it, and whole tensor of what an update changes, one at a time."""
        ...

    def lead(self) -> None:
        """From now on the other ranks follow this one, until `release`."""
        ...

    def release(self) -> None:
        """The other ranks' `follow` returns."""
        ...

    def follow(self) -> None:
        """Take part in what the first rank does, until it releases."""
        ...

    def digests(self) -> Mapping[str, int]:
        """64 bits of each tensor's bytes, where the trainer has the whole tensor, by its name in a checkpoint."""
        ...

    def frozen_digests(self) -> Mapping[str, int]:
        """64 bits of each tensor that no update changes, by its name in the module; empty where ranks share them."""
        ...

    def probe(self) -> Any:
        """Log-probabilities of a fixed text by these weights, a `toolrl_plugin_torch.probe.Probe`."""
        ...

    def save_config(self, folder: Path) -> None:
        """Write config, tokenizer and processor into a folder, and no weights."""
        ...

    def path(self) -> Path:
        """A Hugging Face folder with these weights, written when first asked for."""
        ...


class TrainedModel(Protocol):
    """A model with its tokenizer, as the trainer holds it."""

    tokenizer: Any
    """A transformers tokenizer."""
    processor: Any
    """A transformers processor, or only the image processor; None for a model of text."""

    @property
    def device(self) -> Any:
        """Where it computes; `str()` of it is a name such as `cuda:0`."""
        ...

    @property
    def dtype(self) -> Any:
        """Of its weights; `str()` of it ends in a name such as `bfloat16`."""
        ...

    @property
    def max_positions(self) -> int:
        """Tokens that the model can attend to."""
        ...

    def weights(self, version: int, directory: Path | None = None) -> WeightSource | None:
        """The live weights, or None where a server holds them; `directory` is where folders of them are written."""
        ...


class TrainerBackend(Protocol):
    """What a component of the kind `trainers` builds: `target(config, context)` is called with the whole checked
    config, whose sections `model`, `algorithm`, `trainer` and `sft` are instances of the component's own models."""

    def prepare(self, device: str | None = None) -> None:
        """Seed the process and choose its device, the config's unless one is given. Raises ConfigError."""
        ...

    def load_model(
        self, source: str, *, dtype: str | None = None, ranks: Ranks = ..., hollow: bool = False
    ) -> TrainedModel:
        """The model, which distributed `ranks` share, and its tokenizer; `dtype` stands for the config's. A `hollow`
        one has no weights. Raises ConfigError."""
        ...

    async def train(self, assembly: Assembly) -> None:
        """`toolrl train`: from the run's last checkpoint, where `assembly.resume` says so, to `trainer.steps`.
        Evaluates and saves as the config says; where it is cancelled, it saves the last complete step."""
        ...

    @staticmethod
    def clean(directory: Path) -> None:
        """Delete what killed processes left of this kind in a run's folder."""
        ...

    @staticmethod
    def join(device: str, timeout: float, problem: Exception | None = None) -> Ranks:
        """The ranks that torchrun started, this process among them; they wait `timeout` seconds for each other. Where
        one has a `problem`, it is raised on all."""
        ...


@runtime_checkable
class ChecksMemory(Protocol):
    """A `TrainerBackend` that computes what a run takes of its device, without loading a model."""

    def check_memory(self, source: str, engine: Any, ranks: int) -> None:
        """Warn where a run on the prepared device is unlikely to fit. `engine`: the options of the engine, whose method
        `device_bytes`, where it has one, returns the engine's part. Raises ConfigError where the run can't fit."""
        ...


Credit = float | Mapping[int, float | Sequence[float]]
"""Advantages of an episode: a number for every sampled token; or by turn index one for all sampled tokens of the turn,
or one for each of them in order."""


class AdvantageEstimator(Protocol):
    """Says how much better each episode was than could be expected."""

    def advantages(self, groups: Sequence[Group]) -> Sequence[Sequence[Credit]]:
        """For all groups of a step: one entry a group, in it one for each of its episodes, in order. Values of an
        episode that failed are not used."""
        ...


@dataclass(frozen=True, slots=True)
class LossTerms:
    """What a policy loss is made of: torch tensors of shape [B, T], sequences by tokens. They are 0 where the mask is
    False."""

    logprobs_BT: Any
    """Natural log-probabilities of the tokens under the policy; they carry the gradient."""
    old_logprobs_BT: Any
    """Under the policy before the step's first update (proximal)."""
    rollout_logprobs_BT: Any
    """As the engine reported them when it sampled (behaviour)."""
    advantages_BT: Any
    """Of each token, as credited."""
    mask_BT: Any
    """bool, True on the tokens to train on."""
    reference_logprobs_BT: Any = None
    """Under the reference; None unless the config or the loss asks for it."""
    teacher_logprobs_BT: Any = None
    """Under the teacher of the episode's environment; None without a teacher, NaN on tokens that none scored."""
    entropy_BT: Any = None
    """Of the distribution that each token was drawn from, in nats, with a gradient; None unless asked for."""


class PolicyLoss(Protocol):
    """The policy's part of the loss, in the place of the clipped surrogate. An attribute `needs`, a collection of
    `reference` and `entropy`, asks for these fields of its terms; they cost memory and time."""

    def token_losses(self, terms: LossTerms) -> Any:
        """The loss of each token, a tensor of shape [B, T] with a gradient; lower is better. Values outside of the mask
        are not used. How tokens are averaged, KL and entropy are added to it as the config says."""
        ...


class RunInfo(Protocol):
    """What an observer may know of the run."""

    name: str
    directory: Path
    config: Mapping[str, Any]
    """The resolved config, secrets masked."""
    total_steps: int
    """Training steps; 0 for an evaluation or a rollout, which makes none."""
    start_step: int
    """The step that the run starts from: 0, or its checkpoint's."""


@dataclass(frozen=True)
class StepReport:
    """What happened in one step of training or in one evaluation."""

    step: int
    kind: Literal["train", "eval", "sft", "rollout"]
    metrics: Mapping[str, float]
    """Flat names such as `reward/mean`; written to metrics.jsonl as they are."""


class Cluster(Protocol):
    """Places the workers of a run, and holds limits for all of its processes. Its settings are the config's section
    `cluster`. Built in the command's process, where `rollout_workers`, `trainer_workers` or a tool's `limit_scope:
    cluster` asks for it, and in the rollout workers'."""

    def rollout_workers(
        self,
        loaded: LoadedConfig,
        source: str,
        dtype: str,
        run_dir: Path,
        weights: WeightSource,
        failures: FailurePolicy,
    ) -> AbstractAsyncContextManager[RolloutWorkers]:
        """Entering it starts `cluster.rollout_workers` processes, which load the model of `source` (a folder or a name
        on the hub) in torch's `dtype` and sample from `weights`; leaving it stops them. A worker that dies is replaced,
        and its unfinished groups are sampled again. Raises ConfigError where the cluster can't be reached or has no
        room; RunStoppedError where workers die too often."""
        ...

    async def train(self, loaded: LoadedConfig, *, resume: bool, overwrite: bool, json: bool) -> int:
        """Train on `cluster.trainer_workers` processes to the run's end: the exit status. When one dies all start again
        from the last checkpoint. Cancelling this saves what is done. Raises as `rollout_workers` does."""
        ...

    def limits(self, restarted: Callable[[str], None]) -> ClusterLimits:
        """This process's access to the limits that all processes share. `restarted` is called with a new name when the
        process that holds them was replaced."""
        ...
