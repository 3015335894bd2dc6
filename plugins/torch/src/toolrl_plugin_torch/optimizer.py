"""AdamW with its schedule, gradient clipping, and float32 master weights for models in bfloat16.

A bfloat16 weight has eight significant bits: an update smaller than about 1/256 of it is rounded away, and the learning
rates of RL make nearly all updates that small. So each trained parameter in lower precision than float32 gets a float32
master copy, in which gradients are summed over micro-batches and which AdamW updates; the model's parameter is the
rounded master. Parameters in float32 or float64 are their own masters, at no cost.

Weight decay acts on matrices only: parameters with two or more dimensions, embeddings among them; biases and the
weights of norms are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from toolrl.errors import CheckpointError, RunStoppedError
from toolrl_plugin_torch.offload import offloaded
from toolrl_plugin_torch.options import OptimizerConfig
from toolrl_plugin_torch.sharding.dtensor import full, put


def learning_rate(step: int, config: OptimizerConfig, total_steps: int) -> float:
    """The rate of optimizer step `step`, counted from 0, out of `total_steps`.

    It rises in equal parts over the warm-up's steps, the first of which has the smallest part of the full rate. After
    that it is constant, or falls along a line or half a cosine; the last step has `min_rate` of the full rate.
    """
    warmup = config.warmup_steps
    if isinstance(warmup, float):
        warmup = int(warmup * total_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.schedule == "constant":
        return config.learning_rate
    falling = max(total_steps - 1 - warmup, 1)
    progress = min((step - warmup) / falling, 1.0)
    share = 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate * (config.min_rate + (1.0 - config.min_rate) * share)


class PolicyOptimizer:
    """AdamW over a model's trained parameters. Use: backward the micro-batches, `step`, which also clears gradients."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        config: OptimizerConfig,
        *,
        offload: bool = False,
    ) -> None:
        self.config = config
        self._names: list[str] = []
        self._parameters: list[torch.nn.Parameter] = []
        self._masters: list[torch.nn.Parameter] = []
        self._sums: dict[int, torch.Tensor] = {}
        """By id of a parameter: its gradient for its master."""
        for name, parameter in named_parameters:
            if parameter.requires_grad:
                self._names.append(name)
                self._parameters.append(parameter)
                self._masters.append(self._master(parameter))
        if not self._parameters:
            raise ValueError("no parameter requires a gradient, so there is nothing to train")
        decayed = [master for master in self._masters if master.ndim >= 2]
        others = [master for master in self._masters if master.ndim < 2]
        groups = [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.eps,
            # One kernel for all parameters where there is one; the plain loop is several times slower.
            fused=all(master.device.type in ("cuda", "cpu") for master in self._masters),
        )
        self.on_device = offloaded(offload, self._tensors, self._parameters[0].device)
        """Around all that needs averages and masters on the parameters' device."""

    def step(self, rate: float) -> float:
        """Clip, update at this learning rate, clear the gradients. Returns the gradients' norm before clipping.

        Raises RunStoppedError where the norm isn't finite; nothing is updated then.
        """
        with self.on_device:
            for _, parameter, master in self._tied():
                if master is not parameter:
                    master.grad = self._sums.get(id(parameter))
            norm = clip_gradients(self._masters, self._names, self.config.max_grad_norm)
            for group in self._adamw.param_groups:
                group["lr"] = rate
            self._adamw.step()
            self.write_back()
            self.clear()
        return norm

    def clear(self) -> None:
        """Forget all gradients."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            parameter.grad = None
            master.grad = None
        self._sums.clear()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The live tensors of all that this holds, by kind and parameter, such as "exp_avg/lm_head.weight". "weight/…"
        are the masters, or the parameters that are their own. AdamW's are made where it hasn't made them yet."""
        found: dict[str, torch.Tensor] = {}
        for name, _, master in self._tied():
            state = self._adamw.state[master]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=master.device)
                state["exp_avg"] = torch.zeros_like(master)
                state["exp_avg_sq"] = torch.zeros_like(master)
            found[f"weight/{name}"] = master.detach()
            found |= {f"{kind}/{name}": value for kind, value in state.items()}
        return found

    def state_dict(self) -> dict[str, Any]:
        """AdamW's state, the parameters' names in its order, and the master weights that aren't the model's own."""
        masters = {name: master.detach() for name, parameter, master in self._tied() if master is not parameter}
        return {"names": list(self._names), "adamw": self._adamw.state_dict(), "masters": masters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state that an optimizer of whole tensors saved; the model's weights must be those of the same
        checkpoint. Sharded tensors take their part of it. Settings such as betas stay those of the config.

        Raises CheckpointError where the state is of a model with other trained parameters.
        """
        names = list(state["names"])
        if names != self._names:
            changed = sorted(set(names) ^ set(self._names))
            raise CheckpointError(
                f"the optimizer's state is of other parameters: {len(names)} saved, {len(self._names)} in the "
                f"model; {', '.join(changed[:4]) or 'the same names in another order'}",
                hint="Resume with the model that the run started from, or start a new run from these weights.",
            )
        with self.on_device:
            tensors = self.tensors()
            masters = state["masters"]
            for name, parameter, master in self._tied():
                if name in masters or master is not parameter:
                    put(masters.get(name, parameter), master)
            # AdamW numbers parameters as they stand in its groups.
            by_id = {id(master): name for name, _, master in self._tied()}
            order = [by_id[id(master)] for group in self._adamw.param_groups for master in group["params"]]
            for number, values in state["adamw"]["state"].items():
                for kind, value in values.items():
                    put(value, tensors[f"{kind}/{order[number]}"])

    def _master(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """The float32 copy that stands for a parameter of lower precision, or the parameter itself.

        Gradients of the parameter go to the copy as soon as a backward pass has summed them up, so that micro-batches
        are summed in float32 and no second set of gradients stays in memory.
        """
        if parameter.dtype not in (torch.bfloat16, torch.float16):
            return parameter
        master = torch.nn.Parameter(parameter.detach().float())

        def accumulate(source: torch.Tensor) -> None:
            # Not as the master's own gradient yet: the master may wait on another device.
            assert source.grad is not None
            total = self._sums.get(id(parameter))
            if total is None:
                self._sums[id(parameter)] = source.grad.float()
            else:
                total.add_(source.grad)
            source.grad = None

        parameter.register_post_accumulate_grad_hook(accumulate)
        return master

    def _tensors(self) -> Iterable[torch.Tensor]:
        """What nothing but this needs: averages and masters."""
        for _, parameter, master in self._tied():
            if master is not parameter:
                yield master
        for averages in self._adamw.state.values():
            yield from (value for value in averages.values() if isinstance(value, torch.Tensor))

    def _tied(self) -> Iterable[tuple[str, torch.nn.Parameter, torch.nn.Parameter]]:
        return zip(self._names, self._parameters, self._masters, strict=True)

    def write_back(self) -> None:
        """Round the masters into the model."""
        with torch.no_grad():
            for _, parameter, master in self._tied():
                if master is not parameter:
                    parameter.copy_(master)


def clip_gradients(parameters: Iterable[torch.nn.Parameter], names: Iterable[str], max_norm: float) -> float:
    """Scale all gradients so that their joint 2-norm is at most `max_norm`; returns the norm before.

    Raises RunStoppedError that names parameters whose gradient isn't finite, and leaves the gradients as they are.
    """
    with_gradient = [
        (name, parameter) for name, parameter in zip(names, parameters, strict=True) if parameter.grad is not None
    ]
    gradients = [parameter.grad for _, parameter in with_gradient if parameter.grad is not None]
    norm = full(torch.nn.utils.get_total_norm(gradients))
    value = float(norm)
    if not math.isfinite(value):
        broken = [name for name, p in with_gradient if p.grad is not None and not bool(full(p.grad.isfinite().all()))]
        where = f"in {', '.join(broken[:3])}" + (f" and {len(broken) - 3} more" if len(broken) > 3 else "")
        raise RunStoppedError(
            f"the gradients aren't finite: their norm is {value} ({where if broken else 'each by itself is finite'})",
            hint="No weight was changed. Look at the last steps' rewards and logprob_mismatch, lower the learning_rate "
            "or set model.dtype to float32, then go on from the last checkpoint with --resume.",
        )
    if value > max_norm:
        torch.nn.utils.clip_grads_with_norm_([p for _, p in with_gradient], max_norm, norm)
    return value
