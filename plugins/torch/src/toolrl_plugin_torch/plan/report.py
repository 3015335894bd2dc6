"""What `toolrl plan` prints, and what `toolrl train` refuses."""

from __future__ import annotations

import json
from typing import Any

import torch

from toolrl.config.model import Config
from toolrl.errors import ConfigError, first_line
from toolrl_plugin_torch.plan.advice import advice
from toolrl_plugin_torch.plan.memory import GIB, Gpu, MemoryPlan, Setting, gpu_here, parse_gpu, plan_memory
from toolrl_plugin_torch.plan.sizes import PolicySizes, teacher_bytes
from toolrl_plugin_torch.sharding.sequence_parallel import check_sequence_parallel

_LENGTHS = (0.25, 1.0)
"""Of the tokens that an episode may sample: so many are taken to be sampled, at the low end and at the high one."""
_BANDWIDTH = (0.7, 0.25)
"""Of the memory's bandwidth that decoding reaches."""
_HOST = (0.001, 0.01)
"""Seconds of a decoding step on the CPU."""
_FLOPS = (0.4, 0.1)
"""Of the GPU's operations that an update reaches."""
_LINK = (50e9, 20e9)
"""Bytes a second between GPU and host."""


def plan(config: Any, source: str, engine: Any, gpu: str | None, nodes: int) -> tuple[str, dict[str, Any]]:
    """The plan as text, and as JSON's values. `gpu` is as on the command line; None for the device that is here.
    Raises ConfigError."""
    device, count = parse_gpu(gpu) if gpu is not None else (_here(config), torch.cuda.device_count())
    sizes = PolicySizes(config.model, source, torch.device("cuda"), config.trainer.optimizer)
    setting = Setting(config, engine, sizes, device, _ranks(config, count * nodes), teacher_bytes(config))
    if setting.sharded:
        config.trainer.check_sharded()
    check_sequence_parallel(config, setting.ranks)
    found = plan_memory(setting)
    facts = _facts(setting, found)
    facts["advice"] = (
        [] if found.verdict != "no" else [{"set": step, "peak_gib": _gib(it.peak)} for step, it in advice(setting)]
    )
    return _text(facts), facts


def refuse(config: Any, source: str, engine: Any, device: torch.device, ranks: int) -> str | None:
    """A warning for a run that is unlikely to fit the CUDA device that it is about to start on, None for one that
    is likely to. Raises ConfigError for one that can't."""
    try:
        sizes = PolicySizes(config.model, source, device, config.trainer.optimizer)
        setting = Setting(config, engine, sizes, gpu_here(device), ranks, teacher_bytes(config))
        least, likely = plan_memory(setting, certain=True), plan_memory(setting)
    except Exception as error:  # noqa: BLE001 - what can't be planned may run all the same
        return f"the run's memory can't be planned: {first_line(error)}"
    if "no" not in (least.verdict, likely.verdict):
        return None
    worst = least if least.verdict == "no" else likely
    phase = max(worst.phases, key=lambda name: worst.phases[name])
    why = worst.notes or [
        f"{phase} takes {_gib(worst.peak)} GiB of the {_gib(worst.gpu.bytes)} that {worst.gpu.name} has"
    ]
    held = ", ".join(f"{name} {_gib(size)}" for name, size in worst.parts.items() if size)
    text = f"{'; '.join(why)} ({held})"
    if worst is likely:
        return f"the run may not fit: {text}; `toolrl plan` says what would change that"
    fits = "".join(f"It fits with {_settings(step)}. " for step, _ in advice(setting)[:1])
    raise ConfigError(f"the run can't fit: {text}", hint=f"{fits}`toolrl plan CONFIG` shows all figures.")


def _here(config: Config) -> Gpu:
    if not torch.cuda.is_available():
        raise ConfigError("there is no CUDA device here to plan for", hint="Name one, such as --gpu h200 or --gpu 48.")
    return gpu_here(torch.device("cuda:0" if config.device in ("auto", "cpu") else config.device))


def _ranks(config: Config, gpus: int) -> int:
    """Ranks on so many GPUs: those that the config has Ray place, or one on each GPU that workers leave."""
    cluster = config.cluster
    workers = -(-cluster.rollout_workers * cluster.worker_gpus // 1)
    ranks = cluster.trainer_workers or max(gpus - int(workers), 1)
    if ranks * max(cluster.trainer_gpus, 1) + workers > gpus:
        raise ConfigError(
            f"cluster: {ranks} ranks and {workers:g} GPUs of rollout workers, and --gpu and --nodes give {gpus}",
            hint="Give more of them, such as --gpu h200:8 --nodes 2.",
        )
    return ranks


def _settings(step: dict[str, Any]) -> str:
    return ", ".join(f"{path}={json.dumps(value)}" for path, value in step.items())


def _gib(size: float) -> float:
    return round(size / GIB, 1)


def _facts(setting: Setting, found: MemoryPlan) -> dict[str, Any]:
    """All that is known, as JSON's values; memory in GiB."""
    sizes = setting.sizes
    return {
        "model": sizes.name,
        "parameters": sizes.parameters,
        "trained": sizes.trained,
        "dtype": str(sizes.dtype).removeprefix("torch."),
        "gpu": found.gpu.name,
        "gpu_gib": _gib(found.gpu.bytes),
        "ranks": setting.ranks,
        "tokens_per_microbatch": setting.tokens,
        "gradient_checkpointing": setting.checkpointing,
        "parts_gib": {name: _gib(size) for name, size in found.parts.items()},
        "phases_gib": {name: _gib(size) for name, size in found.phases.items()},
        "host_gib": _gib(found.host),
        "peak_gib": _gib(found.peak),
        "fits": found.verdict,
        "notes": found.notes,
        "step_seconds": {name: [round(end, 1) for end in ends] for name, ends in step_seconds(setting).items()},
        "sampled_tokens": setting.sampled,
    }


_VERDICTS = {
    "yes": "fits",
    "tight": "fits with little to spare",
    "no": "doesn't fit",
    "unknown": "activations come on top, and aren't known: this model can't be computed without its weights",
}
_ASSUMED = """  an episode samples a quarter to all of {sampled_tokens:,} tokens; decoding reads at 0.7 to 0.25
  of the memory's speed, an update computes at 0.4 to 0.1 of the GPU's; tools and rewards come on top"""


def _text(facts: dict[str, Any]) -> str:
    lines = [
        f"{facts['model']} in {facts['dtype']}, {facts['parameters'] / 1e9:.2f} billion parameters, "
        f"{facts['trained'] / 1e9:.2f} trained",
        f"{facts['ranks']} × {facts['gpu']} ({facts['gpu_gib']} GiB), one rank each",
        f"{facts['tokens_per_microbatch']:,} tokens, gradient checkpointing {facts['gradient_checkpointing']}",
        "",
        "GiB on each rank",
    ]
    for name, size in facts["parts_gib"].items():
        lines.append(f"  {name:<20} {size:>8.1f}")
    lines += ["", "GiB at most in each phase"]
    lines += [f"  {name:<20} {size:>8.1f}" for name, size in facts["phases_gib"].items()]
    if facts["host_gib"]:
        lines.append(f"  in the host's memory {facts['host_gib']:>8.1f}")
    lines += ["", *facts["notes"]]
    lines.append(f"peak {facts['peak_gib']} of {facts['gpu_gib']} GiB: {_VERDICTS[facts['fits']]}")
    for step in facts["advice"]:
        lines.append(f"  fits with {_settings(step['set'])} (peak {step['peak_gib']})")
    if facts["fits"] == "no" and not facts["advice"]:
        lines.append("  no setting that this command tries makes it fit")
    if facts["step_seconds"]:
        lines += ["", "seconds of a step, from published speeds"]
        lines += [f"  {name:<20} {low:>8.1f} to {high:.1f}" for name, (low, high) in facts["step_seconds"].items()]
        lines.append(_ASSUMED.format(**facts))
    return "\n".join(lines)


def step_seconds(setting: Setting) -> dict[str, tuple[float, float]]:
    """Seconds that each part of a step may take, the least and the most: arithmetic over published speeds, not a
    measurement; empty where the GPU's speed isn't known.

    A decoding step reads all weights and the cache of its episodes once. An update makes two operations for each token
    and weight forward and four backward (two where the weights are frozen), and two more where layers are computed
    again. Tools and rewards aren't counted.
    """
    gpu, sizes, config = setting.gpu, setting.sizes, setting.config
    if gpu.flops is None or gpu.bandwidth is None:
        return {}
    passes = 2 if config.model.lora is not None else 4
    passes += 4 if setting.checkpointing else 2
    width = setting.sizes.text.num_hidden_layers * getattr(setting.sizes.text, "hidden_size", 0)
    moved = 24 * sizes.trained if "optimizer" in config.trainer.offload else 0
    batch = min(setting.episodes, config.rollout.concurrency, getattr(setting.engine, "max_batch", setting.episodes))
    rollout, update, handover = [], [], []
    for end, share in enumerate(_LENGTHS):
        length = max(setting.sampled * share, 1)
        tokens = setting.episodes * length
        read = 2 * sizes.active + batch * length / 2 * sizes.token
        rollout.append(tokens / batch * (read / (_BANDWIDTH[end] * gpu.bandwidth) + _HOST[end]))
        work = tokens * passes * (sizes.active + width * length)
        update.append(work / (_FLOPS[end] * gpu.flops) + moved / _LINK[end])
        handover.append(sizes.weights / _LINK[end])
    found = {"rollout": tuple(rollout), "update": tuple(update), "hand-over": tuple(handover)}
    return {name: (low, high) for name, (low, high) in found.items()}
