"""Which CUDA devices vLLM may take: those that this process sees. To a rollout worker Ray shows the ones that it lent
it, numbered from 0, or a share of one that other workers have, too."""

from __future__ import annotations

import logging
import math
import sys

from toolrl.errors import ConfigError
from toolrl_plugin_vllm.options import BESIDE, VllmEngineOptions

ALONE = 0.9
"""Of a GPU's memory, on devices of its own."""

_log = logging.getLogger(__name__)


def lent() -> float | None:
    """GPUs that Ray lent this process, below 1 for a share of one; None where it is no worker of Ray's."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return None
    return float(context.get_assigned_resources().get("GPU", 0.0))


def check(options: VllmEngineOptions, seen: int, gpus: float | None) -> None:
    """Refuse what can't be had. `seen` is how many devices torch sees, `gpus` what `lent` says. Raises ConfigError."""
    used = options.devices if options.devices is not None else list(range(options.parts))
    worker = gpus is not None
    whose = f"this worker was lent {gpus:g} (cluster.worker_gpus)" if worker else f"torch sees {seen}"
    more = f"Set cluster.worker_gpus to {options.parts}."
    hidden = "CUDA_VISIBLE_DEVICES hides devices and numbers the others from 0."
    if not seen:
        raise ConfigError(
            f"the vLLM that is installed computes on CUDA devices, and {whose}",
            where="engine",
            hint=more if worker else "Install toolrl-plugin-vllm[cpu] to compute on the CPU. " + hidden,
        )
    if options.devices is not None and max(used) >= seen:
        raise ConfigError(
            f"devices is {used}, and {whose}: {_numbers(seen)}",
            where="engine.options.devices",
            hint="Ray numbers from 0 what it lends a worker: leave devices out." if worker else hidden,
        )
    if len(used) > seen:
        raise ConfigError(
            f"tensor_parallel is {options.parts}, and {whose}",
            where="engine.options.tensor_parallel",
            hint=more if worker else f"Take at most {seen}.",
        )
    if options.memory_fraction is not None and sharers(gpus) * options.memory_fraction > 1:
        raise ConfigError(
            f"memory_fraction is {options.memory_fraction:g}, and cluster.worker_gpus {gpus:g} puts {sharers(gpus)} "
            "workers on one GPU",
            where="engine.options.memory_fraction",
            hint=f"Take less than {1 / sharers(gpus):.2g}, as each worker's own model needs room too; or leave it out.",
        )
    if gpus is not None and set(range(seen)) - {0, *used}:
        _log.warning(
            "cluster.worker_gpus lends each worker %d GPUs, and its engine uses number %s; the others are idle. "
            "tensor_parallel spreads the model over more",
            seen, ", ".join(map(str, used)),
        )  # fmt: skip


def sharers(gpus: float | None) -> int:
    """How many workers may be on one GPU."""
    return math.floor(1 / gpus + 1e-9) if gpus else 1


def fraction(options: VllmEngineOptions, *, shared: bool, gpus: float | None) -> float:
    """The part of a GPU's memory that vLLM may take; `shared` says whether the trainer's model is there, too."""
    if options.memory_fraction is not None:
        return options.memory_fraction
    return min(BESIDE, 2 * BESIDE / sharers(gpus)) if shared else ALONE


def _numbers(seen: int) -> str:
    return "there is number 0 alone" if seen == 1 else f"there are numbers 0 to {seen - 1}"
