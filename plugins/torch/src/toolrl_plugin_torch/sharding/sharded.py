"""Models whose weights are spread over the ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`).

The policy's own model stays whole on every rank: the engine samples from it, and what it does to its logits and whether
it can share beginnings was found out on it. What is trained is a copy, of which every rank holds a part of each tensor
in float32 (float64 where the model is), with the optimizer's state of that part. A layer's tensors are brought together
in the model's own precision when the layer is computed, and its gradients are summed over the ranks in float32: the
same arithmetic as that of one process with float32 masters. After a step the new weights are brought together tensor by
tensor and written into the whole model.

Losses are sums over samples whose weights already count all samples of the step, so gradients are summed over the
ranks and not averaged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from toolrl.errors import ConfigError
from toolrl_plugin_torch.logprob import TokenLogprobs, TokenScorer
from toolrl_plugin_torch.prefixes.tree import TokenTree
from toolrl_plugin_torch.sharding.process_group import ProcessGroup

T = TypeVar("T")

_LOW = (torch.bfloat16, torch.float16)


class ShardedScorer(TokenScorer):
    """A scorer over a copy of another's model that is spread over the ranks. All ranks call it together, also with
    gradients off, and go backward together. With `trained` the shards are kept in float32, for an optimizer."""

    def __init__(self, score: TokenScorer, ranks: ProcessGroup, *, trained: bool, cpu_offload: bool = False) -> None:
        hollow_score, sources = hollow(score, score.model, trained=trained)
        self.model = hollow_score.model
        self.model.train(trained)
        # Layers are brought together when their own passes are called.
        hollow_score._fused = None
        self.fallback = hollow_score.fallback
        self._root = _Scoring(hollow_score)
        spread(self._root, sources, ranks, cpu_offload=cpu_offload)

    def __call__(
        self,
        input_ids_BT: torch.Tensor,
        attention_mask_BT: torch.Tensor,
        loss_mask_BT: torch.Tensor,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        media: Mapping[str, torch.Tensor] | None = None,
        tree: TokenTree | None = None,
    ) -> TokenLogprobs:
        """As `TokenScorer`."""
        options = {"temperature": temperature, "entropy": entropy, "media": media, "tree": tree}
        logprobs_BT, entropy_BT = self._root(input_ids_BT, attention_mask_BT, loss_mask_BT, **options)
        let_go(self._root)
        return TokenLogprobs(logprobs_BT, entropy_BT)


class _Scoring(torch.nn.Module):  # type: ignore[misc]
    """What FSDP2 hooks into: the head's weight is used beside the model's forward pass, so that isn't the outermost."""

    def __init__(self, score: TokenScorer) -> None:
        super().__init__()
        self.model = score.model
        self._score = score

    def forward(self, *inputs: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        scored = self._score(*inputs, **options)
        # No views: FSDP2 can't hook into those.
        return scored.logprobs_BT.clone(), None if scored.entropy_BT is None else scored.entropy_BT.clone()


def hollow(thing: T, module: Any, *, trained: bool) -> tuple[T, dict[int, torch.nn.Parameter]]:
    """A copy of something that holds a module, whose parameters have no numbers yet; and by the id of each the
    parameter that it stands for. Those to be trained are of float32 where the module's are of less; the others are
    frozen.

    Raises ConfigError for a module of several types: one layer is brought together in one.
    """
    types = {parameter.dtype for parameter in module.parameters()}
    if len(types) > 1:
        raise ConfigError(
            f"model.path: a {type(module).__name__} with parameters of several types "
            f"({', '.join(sorted(map(str, types)))}) can't be spread over ranks",
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


def spread(
    root: torch.nn.Module,
    sources: Mapping[int, torch.nn.Parameter],
    ranks: ProcessGroup,
    *,
    cpu_offload: bool,
    apart: Sequence[torch.nn.Module] = (),
) -> None:
    """Fill a hollow module layer by layer and spread it over the ranks; no more than one layer is whole at a time.
    Modules `apart` stand for nothing and have their numbers, and are computed in their own precision.

    Raises ConfigError.
    """
    if cpu_offload and ranks.device == "cpu":
        raise ConfigError(
            "cluster.cpu_offload: the shards are in the host's memory already, since the device is the CPU",
            hint="Leave it out.",
        )
    for block in (*apart, *blocks(root), root):
        low = _fill(block, sources)
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


def blocks(root: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a model, each of which is brought together by itself: those that transformers doesn't split either,
    else the members of the longest list of modules."""
    names = {name for module in root.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    found = [module for module in root.modules() if type(module).__name__ in names]
    if not found:
        lists = [module for module in root.modules() if isinstance(module, torch.nn.ModuleList)]
        found = list(max(lists, key=len, default=()))
    return found


def _fill(block: torch.nn.Module, sources: Mapping[int, torch.nn.Parameter]) -> torch.dtype | None:
    """Give a block's stand-ins their numbers; the type that it is to be computed in, None for the stand-ins' own."""
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


def let_go(root: Any) -> None:
    """After a pass without gradients. No backward pass follows then, after which the outermost tensors would be let go
    of; left together, they would be those of before the next update."""
    if not torch.is_grad_enabled():
        root.reshard()


def copy_into(module: torch.nn.Module, whole: torch.nn.Module) -> None:
    """Bring the trained weights of a spread module together and write them into one of the same names, in its
    precision. All ranks together, whether or not they need them."""
    for (name, parameter), (other, target) in zip(module.named_parameters(), whole.named_parameters(), strict=True):
        assert name == other, "a copy has the names of what it was copied from"
        if parameter.requires_grad:
            with torch.no_grad():
                target.copy_(full(parameter))


def load_from(module: torch.nn.Module, whole: torch.nn.Module) -> None:
    """Take each rank's part of the weights of a whole module."""
    for (name, parameter), (other, source) in zip(module.named_parameters(), whole.named_parameters(), strict=True):
        assert name == other, "a copy has the names of what it was copied from"
        put(source, parameter)


def full(value: torch.Tensor) -> torch.Tensor:
    """A tensor that is spread over ranks, brought together; others as they are. All ranks together."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def put(value: torch.Tensor, target: torch.Tensor) -> None:
    """Write a whole tensor, or each rank's part of it, into a tensor of its shape."""
    with torch.no_grad():
        if not isinstance(target, DTensor):
            target.copy_(value)
            return
        local, mesh = target.to_local(), target.device_mesh
        # Every rank has the whole, so nothing is sent.
        whole = value.detach().to(mesh.device_type, target.dtype)
        local.copy_(distribute_tensor(whole, mesh, target.placements, src_data_rank=None).to_local())
