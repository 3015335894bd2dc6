"""Models whose weights are sharded over the ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`).

The policy's own model stays whole on every rank: the engine samples from it, and the probes of its head and of shared
beginnings ran on it. A copy is trained. Every rank holds a part of each of its tensors in float32 (float64 where the
model is), with the optimizer's state of that part. A layer's tensors are gathered in the model's own precision when the
layer is computed, and its gradients are summed over the ranks in float32: the same arithmetic as one process with
float32 masters. After a step the new weights are gathered tensor by tensor into the whole model.

Losses are sums over samples whose weights already count all samples of the step, so gradients are summed over the
ranks and not averaged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from toolrl.errors import ConfigError
from toolrl_plugin_torch.logprob import TokenLogprobs, TokenScorer
from toolrl_plugin_torch.sharding.process_group import ProcessGroup

T = TypeVar("T")

_LOW = (torch.bfloat16, torch.float16)


class ShardedScorer(TokenScorer):
    """A scorer over a sharded copy of another's model. All ranks call it together, also with gradients off, and go
    backward together. With `trained` the shards are kept in float32, for an optimizer."""

    def __init__(self, score: TokenScorer, ranks: ProcessGroup, *, trained: bool, cpu_offload: bool = False) -> None:
        copied, sources = meta_copy(score, score.model, trained=trained)
        self.model = copied.model
        self.model.train(trained)
        # FSDP gathers a layer when the layer's own forward pass is called.
        copied._fused = None
        self.fallback = copied.fallback
        self._root = _Scoring(copied)
        shard(self._root, sources, ranks, cpu_offload=cpu_offload)

    def __call__(self, *inputs: torch.Tensor, **options: Any) -> TokenLogprobs:
        """As `TokenScorer`."""
        return TokenLogprobs(*self._root(*inputs, **options))


class _Scoring(torch.nn.Module):  # type: ignore[misc]
    """The outermost module for FSDP2: the head's weight is used beside the model's own forward pass."""

    def __init__(self, score: TokenScorer) -> None:
        super().__init__()
        self.model = score.model
        self._score = score

    def forward(self, *inputs: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        scored = self._score(*inputs, **options)
        # No views: FSDP2 can't hook into those.
        return scored.logprobs_BT.clone(), None if scored.entropy_BT is None else scored.entropy_BT.clone()


def meta_copy(thing: T, module: Any, *, trained: bool) -> tuple[T, dict[int, torch.nn.Parameter]]:
    """A copy of something that holds a module, with parameters on the meta device; and by the id of each the parameter
    that it stands for. Those to be trained are in float32 where the module's are in less; the others are frozen.

    Raises ConfigError for a module of several types: FSDP gathers a layer in one.
    """
    types = {parameter.dtype for parameter in module.parameters()}
    if len(types) > 1:
        raise ConfigError(
            f"model.path: a {type(module).__name__} with parameters of several types "
            f"({', '.join(sorted(map(str, types)))}) can't be sharded",
            hint="Set model.dtype to float32, or train in one process.",
        )
    memo: dict[int, Any] = {}
    sources: dict[int, torch.nn.Parameter] = {}
    for parameter in module.parameters():
        wide = trained and parameter.requires_grad and parameter.dtype in _LOW
        dtype = torch.float32 if wide else parameter.dtype
        stand_in = torch.nn.Parameter(
            torch.empty_like(parameter, dtype=dtype, device="meta"), requires_grad=parameter.requires_grad and trained
        )
        memo[id(parameter)] = stand_in
        sources[id(stand_in)] = parameter
    # The stand-ins stay alive in the copy, so that their ids are theirs alone.
    return copy.deepcopy(thing, memo), sources


def shard(
    root: torch.nn.Module,
    sources: Mapping[int, torch.nn.Parameter],
    ranks: ProcessGroup,
    *,
    cpu_offload: bool,
    whole: Sequence[torch.nn.Module] = (),
) -> None:
    """Materialise a `meta_copy` layer by layer and shard it; no more than one layer is whole at a time. Modules in
    `whole` aren't on the meta device, and are computed in their own precision.

    Raises ConfigError.
    """
    if cpu_offload and ranks.device == "cpu":
        raise ConfigError(
            "cluster.cpu_offload: the shards are in the host's memory already, since the device is the CPU",
            hint="Leave it out.",
        )
    for block in (*whole, *blocks(root), root):
        low = _materialise(block, sources)
        mixed = MixedPrecisionPolicy(
            param_dtype=low, reduce_dtype=None if low is None else torch.float32, cast_forward_inputs=False
        )
        offload = CPUOffloadPolicy() if cpu_offload else OffloadPolicy()
        fully_shard(block, mesh=ranks.mesh, mp_policy=mixed, offload_policy=offload)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo knows no scaled sum.
            module.set_force_sum_reduction_for_comms(True)
    root.register_forward_hook(_reshard_without_gradients)


def _reshard_without_gradients(root: Any, *_: Any) -> None:
    """FSDP keeps the root's tensors gathered for a backward pass. Where none follows, they would be stale after the
    next update."""
    if not torch.is_grad_enabled():
        root.reshard()


def blocks(root: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a model, each of which FSDP gathers by itself: those that transformers doesn't split either, else
    the members of the longest list of modules."""
    names = {name for module in root.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    found = [module for module in root.modules() if type(module).__name__ in names]
    if not found:
        lists = [module for module in root.modules() if isinstance(module, torch.nn.ModuleList)]
        found = list(max(lists, key=len, default=()))
    return found


def _materialise(block: torch.nn.Module, sources: Mapping[int, torch.nn.Parameter]) -> torch.dtype | None:
    """Give a block's parameters their numbers; the type that it is computed in, None for the parameters' own."""
    low: torch.dtype | None = None
    made: dict[int, torch.nn.Parameter] = {}
    for module in block.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None or not parameter.is_meta:
                continue
            source = sources[id(parameter)]
            if id(parameter) not in made:
                numbers = source.detach().to(parameter.dtype, copy=True)
                made[id(parameter)] = torch.nn.Parameter(numbers, requires_grad=parameter.requires_grad)
            # Where one tensor has two places, both get the same.
            module._parameters[name] = made[id(parameter)]
            low = source.dtype if source.dtype != parameter.dtype else low
    return low
