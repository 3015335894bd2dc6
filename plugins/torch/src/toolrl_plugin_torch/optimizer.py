"""AdamW with its schedule, gradient clipping, and float32 master weights for models in bfloat16.

A bfloat16 weight has eight significant bits: an update smaller than about 1/256 of it is rounded away, and the learning
rates of RL make nearly all updates that small. So each trained parameter in lower precision than float32 gets a float32
master copy, in which gradients are summed over micro-batches and which AdamW updates; the model's parameter is the
rounded master. Parameters in float32 or float64 are their own masters, at no cost.

Weight decay acts on matrices only: parameters with two or more dimensions, embeddings among them; biases and the
weights of norms are left alone.

With `adamw_8bit` both averages have 8 bits: block-wise dynamic quantisation (arXiv 2110.02861), by kernels of
bitsandbytes. Each block of 256 neighbouring elements has a float32 scale, the block's largest absolute value; an
element is the index of its nearest value in a table of 256. So both averages of a parameter take 2.03 bytes an element
in place of 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.optim.adamw import adamw

from toolrl.errors import CheckpointError, RunStoppedError
from toolrl_plugin_torch.offload import state_transfers
from toolrl_plugin_torch.options import OptimizerConfig
from toolrl_plugin_torch.sharding.dtensor import as_shard, full, local, put

BUCKET = 2**28
"""Bytes of masters and averages that are updated at a time. Two buckets are on the device where they come from the CPU:
one is updated while the other is on its way."""
_BLOCK = 256
"""Elements that share a scale: the size that bitsandbytes' kernels are compiled for."""
_SMALLEST = 4096
"""Elements from which a tensor is quantised, as by default in bitsandbytes: little is saved on smaller ones."""


def learning_rate(step: int, config: OptimizerConfig, total_steps: int) -> float:
    """The rate of optimizer step `step`, counted from 0, out of `total_steps`.

    It rises in equal parts over the warm-up's steps, the first of which has the smallest part of the full rate. After
    that it is constant, or falls along a line or half a cosine from the full rate to `min_rate` of it, which it would
    reach one step after the last: a last step at rate 0 would throw its rollout away. So do the schedules of
    transformers (`get_linear_schedule_with_warmup`, `get_cosine_schedule_with_warmup`).
    """
    warmup = config.warmup_steps
    if isinstance(warmup, float):
        warmup = int(warmup * total_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.schedule == "constant":
        return config.learning_rate
    falling = max(total_steps - warmup, 1)
    progress = min((step - warmup) / falling, 1.0)
    share = 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * (config.min_rate + (1.0 - config.min_rate) * share)


@dataclass
class _Trained:
    """A parameter with what AdamW needs for it."""

    name: str
    parameter: torch.nn.Parameter
    master: torch.Tensor | None
    """Its float32 copy; None for a parameter that is its own master."""
    total: torch.Tensor | None = None
    """With a master: the sum of the gradients of micro-batches, in float32."""
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    """AdamW's, under torch's names: `step` on the CPU, `exp_avg`, `exp_avg_sq`. Empty before it is needed."""
    quantised: bool = False
    """Whether the averages have 8 bits."""

    @property
    def weight(self) -> torch.Tensor:
        """What AdamW updates."""
        return self.parameter.detach() if self.master is None else self.master

    @property
    def gradient(self) -> torch.Tensor | None:
        return self.parameter.grad if self.master is None else self.total

    @property
    def decays(self) -> bool:
        return self.parameter.ndim >= 2

    def accumulate(self, source: torch.Tensor) -> None:
        """Move the gradient of one micro-batch to the sum, so that no second set of gradients stays in memory."""
        assert source.grad is not None
        self.total = source.grad.float() if self.total is None else self.total.add_(source.grad)
        source.grad = None


class _Part(NamedTuple):
    """Some rows of a parameter."""

    of: _Trained
    parameter: torch.Tensor
    gradient: torch.Tensor
    kept: Sequence[torch.Tensor]
    """Both averages, then the master if there is one."""


class PolicyOptimizer:
    """AdamW over a model's trained parameters. Use: backward the micro-batches, `clip`, `step`, which also clears
    gradients. With `offload` masters and averages stay on the CPU, and pass through the device bucket by bucket."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        config: OptimizerConfig,
        *,
        offload: bool = False,
    ) -> None:
        self.config = config
        named = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
        if not named:
            raise ValueError("no parameter requires a gradient, so there is nothing to train")
        self._device = local(named[0][1].detach()).device
        self._transfers = state_transfers(offload, self._device)
        self._trained = [self._add(name, parameter) for name, parameter in named]

    def clip(self) -> float:
        """Clip the gradients. Returns their norm before; raises RunStoppedError where it isn't finite."""
        gradients = {it.name: it.gradient for it in self._trained if it.gradient is not None}
        return clip_gradients(gradients, self.config.max_grad_norm)

    def step(self, rate: float) -> None:
        """Update at this learning rate, clear the gradients. After an error some weights are updated and some not."""
        with torch.no_grad():
            for number, bucket in enumerate(self._buckets()):
                with self._transfers.lane(number):
                    self._update(bucket, rate)
            self._transfers.wait()
            for it in self._trained:
                if it.quantised and it.gradient is not None:
                    self._update_quantised(it, rate)
        for it in self._trained:
            if it.gradient is not None:
                it.state["step"] += 1
        self.clear()

    def clear(self) -> None:
        """Forget all gradients."""
        for it in self._trained:
            it.parameter.grad = it.total = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The live tensors of all that this holds, by kind and parameter, such as "exp_avg/lm_head.weight". "weight/…"
        are the masters, or the parameters that are their own. AdamW's are made where it hasn't made them yet."""
        found: dict[str, torch.Tensor] = {}
        for it in self._trained:
            found[f"weight/{it.name}"] = it.weight
            found |= {f"{kind}/{it.name}": value for kind, value in self._state(it).items()}
        return found

    def state_dict(self) -> dict[str, Any]:
        """AdamW's state, the parameters' names, and the master weights that aren't the model's own."""
        state = {number: dict(it.state) for number, it in enumerate(self._numbered()) if it.state}
        masters = {it.name: it.master for it in self._trained if it.master is not None}
        return {"names": [it.name for it in self._trained], "adamw": {"state": state}, "masters": masters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state that an optimizer of whole tensors saved; the model's weights must be those of the same
        checkpoint. Sharded tensors take their part of it. Settings such as betas stay those of the config.

        Raises CheckpointError where the state is of a model with other trained parameters.
        """
        names, own = list(state["names"]), [it.name for it in self._trained]
        if names != own:
            changed = sorted(set(names) ^ set(own))
            raise CheckpointError(
                f"the optimizer's state is of other parameters: {len(names)} saved, {len(own)} in the "
                f"model; {', '.join(changed[:4]) or 'the same names in another order'}",
                hint="Resume with the model that the run started from, or start a new run from these weights.",
            )
        for it in self._trained:
            if it.name in state["masters"] or it.master is not None:
                put(state["masters"].get(it.name, it.parameter), it.weight)
        numbered = self._numbered()
        for number, values in state["adamw"]["state"].items():
            own_values = self._state(numbered[number])
            if {kind: value.dtype for kind, value in values.items()} != {k: v.dtype for k, v in own_values.items()}:
                raise CheckpointError(
                    f"AdamW's averages of {numbered[number].name} are saved in {values['exp_avg'].dtype}, and "
                    f"`optimizer: {self.config.optimizer}` keeps them in {own_values['exp_avg'].dtype}",
                    hint="Resume with the trainer.optimizer (or sft.optimizer) that the run started with.",
                )
            for kind, value in values.items():
                put(value, own_values[kind])

    def write_back(self) -> None:
        """Round the masters into the model."""
        with torch.no_grad():
            for it in self._trained:
                if it.master is not None:
                    it.parameter.copy_(it.master)

    def _add(self, name: str, parameter: torch.nn.Parameter) -> _Trained:
        eight = self.config.optimizer == "adamw_8bit"
        if parameter.dtype not in (torch.bfloat16, torch.float16):
            return _Trained(name, parameter, None, quantised=eight and _quantises(parameter))
        wide = parameter.detach().float()
        it = _Trained(name, parameter, self._buffer(wide), quantised=eight and _quantises(wide))
        put(wide, it.weight)
        parameter.register_post_accumulate_grad_hook(it.accumulate)
        return it

    def _buffer(self, like: torch.Tensor) -> torch.Tensor:
        return as_shard(self._transfers.buffer(local(like)).zero_(), like)

    def _state(self, it: _Trained) -> dict[str, torch.Tensor]:
        if not it.state:
            it.state["step"] = torch.zeros((), dtype=torch.float32)
            if it.quantised:
                it.state |= _quantised_zeros(it.weight)
            else:
                it.state |= {kind: self._buffer(it.weight) for kind in ("exp_avg", "exp_avg_sq")}
        return it.state

    def _numbered(self) -> list[_Trained]:
        """In the order in which a checkpoint numbers AdamW's states."""
        return sorted(self._trained, key=lambda it: not it.decays)

    def _buckets(self) -> Iterator[list[_Part]]:
        """All that has a gradient and isn't quantised, in turns of at most BUCKET bytes of state, in each of which all
        decay or none."""
        for decays in (True, False):
            bucket, room = list[_Part](), BUCKET
            streamed = [it for it in self._trained if it.decays == decays and not it.quantised]
            for part in (part for it in streamed for part in self._parts(it)):
                size = sum(tensor.nbytes for tensor in part.kept)
                if bucket and size > room:
                    yield bucket
                    bucket, room = [], BUCKET
                bucket.append(part)
                room -= size
            if bucket:
                yield bucket

    def _parts(self, it: _Trained) -> Iterator[_Part]:
        """This rank's rows of a parameter with a gradient, of at most BUCKET bytes of state where a row isn't more."""
        if it.gradient is None:
            return
        state = self._state(it)
        kept = [state["exp_avg"], state["exp_avg_sq"], *([] if it.master is None else [it.master])]
        tensors = [local(tensor) for tensor in (it.parameter.detach(), it.gradient, *kept)]
        size = sum(tensor.nbytes for tensor in tensors[2:])
        rows = max(1, BUCKET * len(tensors[0]) // size) if size and tensors[0].ndim else 1
        for parameter, gradient, *held in zip(*(t.split(rows) if t.ndim else (t,) for t in tensors), strict=True):
            if parameter.numel():
                yield _Part(it, parameter, gradient, held)

    def _update(self, bucket: Sequence[_Part], rate: float) -> None:
        transfers, config = self._transfers, self.config
        here = [[transfers.back(tensor) for tensor in part.kept] for part in bucket]
        adamw(
            [tensors[2] if tensors[2:] else part.parameter for part, tensors in zip(bucket, here, strict=True)],
            [part.gradient for part in bucket],
            [tensors[0] for tensors in here],
            [tensors[1] for tensors in here],
            [],
            [torch.full((), float(part.of.state["step"]), device=self._device) for part in bucket],
            # One kernel for all tensors where there is one; the plain loop is several times slower.
            fused=self._device.type in ("cuda", "cpu"),
            amsgrad=False,
            beta1=config.betas[0],
            beta2=config.betas[1],
            lr=rate,
            weight_decay=config.weight_decay if bucket[0].of.decays else 0.0,
            eps=config.eps,
            maximize=False,
        )
        for part, tensors in zip(bucket, here, strict=True):
            if tensors[2:]:
                part.parameter.copy_(tensors[2])
            for tensor, held in zip(tensors, part.kept, strict=True):
                transfers.out(tensor, held)

    def _update_quantised(self, it: _Trained, rate: float) -> None:
        config, weight = self.config, it.weight
        decay = config.weight_decay if it.decays else 0.0
        settings = {"betas": config.betas, "eps": config.eps, "weight_decay": decay}
        _quantised_step(weight, it.gradient, self._state(it), rate=rate, **settings)
        if it.master is not None:
            it.parameter.copy_(it.master)


def clip_gradients(gradients: Mapping[str, torch.Tensor], max_norm: float) -> float:
    """Scale all gradients, by name, so that their joint 2-norm is at most `max_norm`; returns the norm before.

    Raises RunStoppedError that names parameters whose gradient isn't finite, and leaves the gradients as they are.
    """
    norm = full(torch.nn.utils.get_total_norm(gradients.values()))
    value = float(norm)
    if not math.isfinite(value):
        broken = [name for name, gradient in gradients.items() if not bool(full(gradient.isfinite().all()))]
        where = f"in {', '.join(broken[:3])}" + (f" and {len(broken) - 3} more" if len(broken) > 3 else "")
        raise RunStoppedError(
            f"the gradients aren't finite: their norm is {value} ({where if broken else 'each by itself is finite'})",
            hint="No weight was changed. Look at the last steps' rewards and logprob_mismatch, lower the learning_rate "
            "or set model.dtype to float32, then go on from the last checkpoint with --resume.",
        )
    if value > max_norm:
        torch._foreach_mul_([local(gradient) for gradient in gradients.values()], max_norm / (norm + 1e-6))
    return value


def _quantises(weight: torch.Tensor) -> bool:
    """Whether this weight's averages have 8 bits. The kernels expect contiguous float32."""
    return weight.numel() >= _SMALLEST and weight.dtype == torch.float32 and weight.is_contiguous()


def _quantised_zeros(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The averages of a weight before the first step: codes of the weight's shape, and a scale for each block."""
    found = {}
    for kind in ("exp_avg", "exp_avg_sq"):
        found[kind] = torch.zeros_like(weight, dtype=torch.uint8)
        found[f"{kind}_scale"] = weight.new_zeros(-(-weight.numel() // _BLOCK))
    return found


@torch.no_grad()
def _quantised_step(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    state: Mapping[str, torch.Tensor],
    *,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """AdamW's next step on a weight, in place. `state["step"]` has the number of steps before it."""
    from bitsandbytes.functional import optimizer_update_8bit_blockwise

    signed, unsigned = _tables(weight.device)
    optimizer_update_8bit_blockwise(
        "adam",  # With decay of the weight itself, so it is AdamW.
        gradient.contiguous(),
        weight,
        state["exp_avg"],
        state["exp_avg_sq"],
        beta1=betas[0],
        beta2=betas[1],
        beta3=0.0,
        alpha=0.0,
        eps=eps,
        step=int(state["step"]) + 1,
        lr=rate,
        qmap1=signed,
        qmap2=unsigned,
        absmax1=state["exp_avg_scale"],
        absmax2=state["exp_avg_sq_scale"],
        weight_decay=weight_decay,
    )


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The values that codes stand for: of the average of gradients, and of that of their squares."""
    from bitsandbytes.functional import create_dynamic_map

    return create_dynamic_map(signed=True).to(device), create_dynamic_map(signed=False).to(device)
