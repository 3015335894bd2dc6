"""Models whose weights are sharded over the ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`).

No rank holds a whole model. Every rank holds a part of each tensor, in float32 (float64 where the model is) with the
optimizer's state of that part if the tensor is trained. A layer's tensors are gathered in the model's own precision
when the layer is computed, and its gradients are summed over the ranks in float32: the same arithmetic as one process
with float32 masters.

Losses are sums over samples whose weights already count all samples of the step, so gradients are summed over the
ranks and not averaged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from toolrl.errors import ConfigError
from toolrl_plugin_torch.logprob import TokenLogprobs, TokenScorer
from toolrl_plugin_torch.modes import train_without_noise
from toolrl_plugin_torch.sharding.dtensor import local_slice, put
from toolrl_plugin_torch.sharding.process_group import ProcessGroup
from toolrl_plugin_torch.sharding.sequence_parallel import SequenceGroup

T = TypeVar("T")

_LOW = (torch.bfloat16, torch.float16)


@contextmanager
def without_weights() -> Iterator[None]:
    """Modules that are made meanwhile have parameters on the meta device, and buffers with their values."""
    register = torch.nn.Module.register_parameter

    def on_meta(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = on_meta
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.nn.Module.register_parameter = register


def copy_without_weights(module: T, dtype: torch.dtype, *, trained: bool) -> T:
    """A copy of a model of this type with parameters on the meta device, which shares its buffers. With `trained`,
    parameters that require a gradient are in float32 where the type is a lower one; else none requires it.

    Raises ConfigError for a trained parameter that the model keeps in another type: FSDP gathers a layer in one.
    """
    model: Any = module
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for name, parameter in model.named_parameters():
        learns = trained and parameter.requires_grad
        if learns and parameter.dtype != dtype:
            raise ConfigError(
                f"model.path: the model keeps {name!r} in {parameter.dtype}, and several processes can train it in "
                f"{dtype} only, as the rest",
                hint="Set model.dtype to float32, or train in one process.",
            )
        wide = torch.float32 if learns and dtype in _LOW else parameter.dtype
        empty = torch.empty_like(parameter, dtype=wide, device="meta")
        memo[id(parameter)] = torch.nn.Parameter(empty, requires_grad=learns)
    return copy.deepcopy(module, memo)


def allocate(root: torch.nn.Module, device: str | torch.device, *, cpu_offload: bool = False) -> None:
    """Memory for all parameters on the meta device; tied ones stay tied. With `cpu_offload`, shards are on the CPU."""
    made: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in made:
                    place = "cpu" if cpu_offload and hasattr(parameter, "full_tensor") else device
                    empty = torch.empty_like(parameter, device=place)
                    new = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
                    made[id(parameter)] = (parameter, new)
                module._parameters[name] = made[id(parameter)][1]


class ShardedModel(torch.nn.Module):  # type: ignore[misc]
    """A copy of a model, sharded, as the outermost module for FSDP2: the head's weight is used beside the model's own
    forward pass. All ranks call it together, also with gradients off, and go backward together.

    Parameters of the model that are on the meta device have no values yet here; others are copied.
    """

    def __init__(
        self, model: Any, dtype: torch.dtype, ranks: ProcessGroup, *, trained: bool, cpu_offload: bool = False
    ) -> None:
        super().__init__()
        self.dtype = dtype
        """That the model is computed in."""
        self.model = copy_without_weights(model, dtype, trained=trained)
        train_without_noise(self.model) if trained else self.model.eval()
        shard(self, dtype, ranks, cpu_offload=cpu_offload)
        self.copy_from(model)

    def copy_from(self, model: Any) -> None:
        """Take the values of the parameters that another model of the same names has here: whole ones, or shards."""
        copy_parameters(model, self.model)

    def forward(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """`work` of the arguments; it may call the model and use the head's weight."""
        return work(*arguments, **options)


def copy_parameters(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Copy parameters of the same names, except those on the meta device: whole or sharded into sharded."""
    for (name, one), (other, two) in zip(source.named_parameters(), target.named_parameters(), strict=True):
        assert name == other, "a copy has the names of what it was copied from"
        if hasattr(one, "full_tensor"):
            with torch.no_grad():
                local_slice(two)[0].copy_(one.to_local())
        elif not one.is_meta:
            put(one, two)


class ShardedScorer(TokenScorer):
    """A scorer over a sharded model. With a `group`, its ranks compute each tree together."""

    def __init__(self, sharded: ShardedModel, group: SequenceGroup | None = None) -> None:
        self._sharded = sharded
        super().__init__(sharded.model, sharded.dtype)
        self._switch = None  # Ranks call the model equally often; `start_check` refuses what would need more calls.
        self.group = group

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """As `TokenScorer`, without gradients: `_reshard_without_gradients` shards the root's tensors again, which the
        optimizer takes next."""
        with torch.no_grad():
            return self._sharded(work, *arguments)  # type: ignore[no-any-return]

    def fuse(self) -> None:
        """Nothing: FSDP gathers a layer when the layer's own forward pass is called."""

    def __call__(self, *inputs: torch.Tensor, **options: Any) -> TokenLogprobs:
        """As `TokenScorer`."""
        return TokenLogprobs(*self._sharded(self._score, *inputs, **options))

    def _score(self, *inputs: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        scored = super().__call__(*inputs, **options)
        # No views: FSDP2 can't hook into those.
        return scored.logprobs_BT.clone(), None if scored.entropy_BT is None else scored.entropy_BT.clone()


def shard(
    root: torch.nn.Module,
    dtype: torch.dtype,
    ranks: ProcessGroup,
    *,
    cpu_offload: bool,
    whole: Sequence[torch.nn.Module] = (),
) -> None:
    """Shard a module that is on the meta device, and allocate this rank's part. Modules in `whole` have their values
    already, and are computed in their own precision; all others in `dtype`.

    Raises ConfigError.
    """
    if cpu_offload and ranks.device == "cpu":
        raise ConfigError(
            "cluster.cpu_offload: the shards are in the host's memory already, since the device is the CPU",
            hint="Leave it out.",
        )
    # Such as a router's bias in float32: whole on every rank, as FSDP gathers a layer in one type.
    ignored = {each for each in root.parameters() if each.dtype != dtype and not each.requires_grad}
    offload = CPUOffloadPolicy() if cpu_offload else OffloadPolicy()
    for block in (*whole, *blocks(root), root):
        low = dtype if dtype in _LOW and block not in whole else None
        mixed = MixedPrecisionPolicy(
            param_dtype=low, reduce_dtype=None if low is None else torch.float32, cast_forward_inputs=False
        )
        fully_shard(block, mesh=ranks.mesh, mp_policy=mixed, offload_policy=offload, ignored_params=ignored)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo knows no scaled sum.
            module.set_force_sum_reduction_for_comms(True)
    root.register_forward_hook(_reshard_without_gradients)
    allocate(root, ranks.device_name or ranks.device, cpu_offload=cpu_offload)


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
