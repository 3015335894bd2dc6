"""The base of all trainers: a policy with its optimizer, step counter and checkpoints.

The counter advances as an update's last act, and checkpoints are taken between updates only, so that model, optimizer
and counter always belong together.
"""

from __future__ import annotations

import shutil
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from toolrl.errors import CheckpointError, RunStoppedError
from toolrl.loop.ranks import ONE, Ranks
from toolrl_plugin_torch.algorithm import ReferenceConfig
from toolrl_plugin_torch.batch import MicroBatch, Sample
from toolrl_plugin_torch.checkpoints.trainer_state import (
    Stateful,
    load_weights,
    read_state,
    restore_random,
    write_state,
)
from toolrl_plugin_torch.critic import Critic
from toolrl_plugin_torch.logprob import TokenLogprobs, TokenScorer
from toolrl_plugin_torch.modes import train_without_noise
from toolrl_plugin_torch.optimizer import PolicyOptimizer, learning_rate
from toolrl_plugin_torch.options import SftConfig, TrainerConfig
from toolrl_plugin_torch.policy import PolicyModel
from toolrl_plugin_torch.prefixes.sharing import choose
from toolrl_plugin_torch.prefixes.tree_attention import over_trees
from toolrl_plugin_torch.reference import Reference
from toolrl_plugin_torch.routes import Routers
from toolrl_plugin_torch.sharding.dtensor import local
from toolrl_plugin_torch.sharding.single_process import SingleProcess
from toolrl_plugin_torch.start_check import check_passes
from toolrl_plugin_torch.weights import PolicyWeights

BACKEND = "inductor"


class CompiledLayers:
    """The decoder layers of some models, compiled by `torch.compile` when they are called first: `model.compile`.

    Sizes are dynamic: micro-batches of other lengths need no other compilation. An engine may share the model; its
    passes have other shapes and no gradients, so they stay as they are."""

    def __init__(self, models: Sequence[Any]) -> None:
        from toolrl_plugin_torch.sharding.fsdp import blocks  # Imports FSDP, which others do without.

        self._calls = [
            (layer, torch.compile(layer._call_impl, backend=BACKEND, dynamic=True))
            for model in models
            for layer in blocks(model)
        ]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Meanwhile the models call their compiled layers. Covers the backward pass too, as gradient checkpointing
        computes layers again."""
        try:
            for layer, call in self._calls:
                layer._compiled_call_impl = call
            yield
        finally:
            for layer, _ in self._calls:
                layer._compiled_call_impl = None


@contextmanager
def within_memory() -> Iterator[None]:
    """Raises RunStoppedError, with what to change, where the device's memory runs out. Also a decorator."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunStoppedError(
            f"the device's memory ran out: {str(error).partition('. GPU')[0]}",
            hint="Lower tokens_per_microbatch (of trainer or sft), set model.gradient_checkpointing to true and "
            "offload to [optimizer], or give the engine less; then go on from the last checkpoint with --resume.",
        ) from error


class BaseTrainer:
    """A policy with its optimizer and step counter."""

    def __init__(
        self,
        policy: PolicyModel,
        settings: TrainerConfig | SftConfig,
        directory: Path,
        *,
        reference: ReferenceConfig | None = None,
        ranks: Ranks = ONE,
        cpu_offload: bool = False,
        sequence_parallel: int = 1,
    ) -> None:
        self.policy = policy
        self.ranks = ranks
        self._parallel = SingleProcess(ranks)
        if ranks.distributed:
            # Imports FSDP, which one process does without.
            from toolrl_plugin_torch.sharding.sharded import Sharded

            self._parallel = Sharded(ranks, cpu_offload=cpu_offload, sequence_parallel=sequence_parallel)
        section = "sft" if isinstance(settings, SftConfig) else "trainer"
        self.step = 0
        """Complete steps; also the version of the weights."""
        self.skipped_steps = 0
        """Steps at the start of the run in which the policy waits; its learning rate's schedule begins after them."""
        self.whole = True
        """False from the first weight that a step writes until the step is complete: no checkpoint then."""
        self.critic: Critic | None = None
        self._weights = PolicyWeights(policy, 0, directory)
        self._settings = settings
        self._directory = directory
        train_without_noise(policy.model)
        policy.ranks = ranks
        self.routers: Routers | None = None
        """Those of the policy, where recorded routes are replayed."""
        self._score = self._parallel.trained_scorer(policy)
        check_passes(self._score, policy.tokenizer, policy.reach)
        where = f"{section}.share_prefix"
        cut = sequence_parallel > 1
        shares = choose(settings.share_prefix, [self._score], where, policy.tokenizer, parallel=cut)
        self.shares = ranks.broadcast(shares, where)
        """Whether common beginnings of sequences are computed once."""
        self._scorers = [self._score]
        self._reference: Reference | None = None
        if reference is not None:
            scorer = self._parallel.reference_scorer(policy, follows=bool(reference.sync_every))
            offload = "reference" in settings.offload
            self._reference = Reference(scorer, self._score, reference, offload=offload, device=policy.device)
            self._scorers.append(scorer)
        models = [score.model for score in self._scorers]
        self._compiled = CompiledLayers(models if policy.compile else ())
        self.optimizer = PolicyOptimizer(
            self._score.model.named_parameters(), settings, offload="optimizer" in settings.offload
        )

    def update(self, batch: Sequence[Any]) -> dict[str, float]:
        """One step's update from its groups, or from a batch of demonstrations: advances `step`, gives metrics."""
        raise NotImplementedError

    @property
    def reference(self) -> Any:
        """The model that the objective's KL divergence is taken to; None where it has none."""
        return None if self._reference is None else self._reference.score.model

    def weights(self) -> PolicyWeights:
        """The live weights, with their version. Deletes the folder of an earlier version."""
        if self._weights.version != self.step:
            # An engine outside of torch's allocator, such as one in another process, wakes up next.
            torch.cuda.empty_cache()
            self._weights.close()
            self._weights = PolicyWeights(self.policy, self.step, self._directory)
        return self._weights

    def optimizers(self) -> dict[str, PolicyOptimizer]:
        """All, by name; each has the weights that it trains."""
        return {"policy": self.optimizer} | ({"critic": self.critic.optimizer} if self.critic is not None else {})

    def states(self) -> dict[str, Stateful]:
        """What several ranks save, by name."""
        return {**self._extras(), **self.optimizers()}

    def gather_state(self, directory: Path) -> Path | None:
        """A folder of shards that all ranks wrote together; None in one process."""
        return self._parallel.gather_state(directory, self.step, self.states(), self.policy)

    def save(self, folder: Path, gathered: Path | None) -> None:
        """Write model, tokenizer and state into a checkpoint's folder. `gathered` is moved into it, or deleted where
        something fails."""
        policy = self.policy
        try:
            if gathered is None:
                policy.save_trained(folder, "the model's folder")
                write_state(folder, self.optimizer.state_dict(), self.extra_state())
            else:
                from toolrl_plugin_torch.checkpoints.shards import MODEL

                for part in (gathered / MODEL).iterdir():
                    part.rename(folder / part.name)
                (gathered / MODEL).rmdir()
                write_state(folder, {}, dict.fromkeys(self.states()))
                gathered.rename(folder / "trainer" / "shards")
        except BaseException:
            if gathered is not None:
                shutil.rmtree(gathered, ignore_errors=True)
            raise

    def saved_bytes(self) -> int:
        """About how many bytes `save` writes."""
        tensors = [each for each in self.policy.live.parameters() if each.requires_grad or self.policy.adapter is None]
        for state in self.states().values():
            tensors += state.tensors().values()
        return sum({local(tensor).data_ptr(): tensor.nbytes for tensor in tensors}.values())

    def load(self, folder: Path, step: int) -> None:
        """Resume from a checkpoint of this step. Raises CheckpointError."""
        state = read_state(folder)
        load_weights(self.policy, folder)
        if (folder / "trainer" / "shards").is_dir():
            from toolrl_plugin_torch.checkpoints.shards import read_shards

            read_shards(folder, self.states(), self.ranks)
        else:
            self.optimizer.load_state_dict(state["optimizer"])
            self.load_extra_state(state["extra"])
        restore_random(state["random"])
        self.step = step

    def extra_state(self) -> dict[str, Any]:
        """The states of a critic and of a reference that changes, by name."""
        return {name: part.state_dict() for name, part in self._extras().items()}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Load what `extra_state` returned. Raises CheckpointError where that is of other parts."""
        if state.keys() != self._extras().keys():
            raise CheckpointError(
                f"the checkpoint holds {sorted(state)} besides the policy, and the config asks for "
                f"{sorted(self._extras())}",
                hint="Resume with the algorithm that the run began with (a reference is kept with "
                "algorithm.reference.sync_every), or start a new run from these weights.",
            )
        for name, part in self._extras().items():
            part.load_state_dict(state[name])

    def _extras(self) -> dict[str, Any]:
        follows = self._reference is not None and self._reference.follows
        parts = (("critic", self.critic), ("reference", self._reference if follows else None))
        return {name: part for name, part in parts if part is not None}

    def _pad_id(self) -> int:
        pad = self.policy.tokenizer.pad_token_id
        return 0 if pad is None else int(pad)

    def _micro_batches(
        self, samples: Sequence[Sample], groups: Sequence[Hashable]
    ) -> tuple[list[MicroBatch], Sequence[int]]:
        """This rank's share of the samples of all ranks, and which these are. `groups` names the group of each."""
        budget, what = self._settings.tokens_per_microbatch, f"micro-batches of step {self.step + 1}"
        return self._parallel.micro_batches(
            samples, groups, budget, pad_id=self._pad_id(), share=self.shares, what=what
        )

    @contextmanager
    def _computing(self, batch: MicroBatch) -> Iterator[None]:
        """Around all passes over a micro-batch, forward and backward."""
        models = [score.model for score in self._scorers]
        replay = nullcontext()
        if self.routers is not None and batch.routes_NLK is not None:
            replay = self.routers.replaying(batch.routes_NLK.to(self.policy.device))
        with self._compiled.used(), nullcontext() if batch.tree is None else over_trees(models), replay:
            yield

    def _scored(self, score: TokenScorer, batch: MicroBatch, **options: Any) -> TokenLogprobs:
        """The trained tokens of a micro-batch under one of the models. `options` are the scorer's."""
        tensors = (batch.input_ids_BT, batch.attention_mask_BT, batch.loss_mask_BT)
        return score(*tensors, media=batch.media, tree=batch.tree, kept=batch.kept, **options)

    def _update(self) -> dict[str, float]:
        skipped = self.skipped_steps
        rate = learning_rate(self.step - skipped, self._settings, self._settings.steps - skipped)
        norm = self.optimizer.clip()
        self.whole = False
        self.optimizer.step(rate)
        return {"grad_norm": norm, "learning_rate": rate}

    def _complete(self) -> None:
        """The step's updates are done."""
        self.step, self.whole = self.step + 1, True
