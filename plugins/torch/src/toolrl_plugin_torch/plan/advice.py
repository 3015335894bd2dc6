"""Settings under which a run fits, found by planning them: one change first, then several together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from toolrl.errors import ConfigError
from toolrl_plugin_torch.options import LoraConfig
from toolrl_plugin_torch.plan.memory import MemoryPlan, Setting, plan_memory
from toolrl_plugin_torch.plan.sizes import PolicySizes

Change = tuple[str, Any]
"""A path in the config and its new value; `ranks` is the number of processes."""
_RANKS = (2, 4, 8, 16, 32)
_LEAST_TOKENS = 2048
_ENGINE = "engine.options."


def advice(setting: Setting) -> list[tuple[dict[str, Any], MemoryPlan]]:
    """Changes with which the setting fits, with its plan: the first of `_changes` that does alone; else as many of them
    as it takes, one after the other, without those that the last ones make needless. Empty where none help."""
    together: dict[str, Any] = {}
    for path, value in _changes(setting):
        if (plan := _fits(setting, {path: value})) is not None:
            return [(_shown({path: value}), plan)]
    for path, value in _changes(setting):
        together = together if _changed(setting, wider := {**together, path: value}) is None else wider
        if _fits(setting, together) is not None:
            break
    for path in list(together):
        fewer = {key: value for key, value in together.items() if key != path}
        together = fewer if _fits(setting, fewer) is not None else together
    plan = _fits(setting, together)
    return [] if plan is None else [(_shown(together), plan)]


def _fits(setting: Setting, changes: dict[str, Any]) -> MemoryPlan | None:
    """The plan with the changes; None where it doesn't fit for sure."""
    changed = _changed(setting, changes)
    plan = None if changed is None else plan_memory(changed)
    return plan if plan is not None and plan.verdict == "yes" else None


def _shown(changes: dict[str, Any]) -> dict[str, Any]:
    return {path: {} if path == "model.lora" else value for path, value in changes.items()}


def _changes(setting: Setting) -> Iterator[Change]:
    """The smallest first. Those that lose something (precision, all weights, other GPUs) come last."""
    config, engine = setting.config, setting.engine
    if not setting.checkpointing:
        yield "model.gradient_checkpointing", True
    wanted = ["optimizer"]
    if not setting.sharded:
        wanted += ["reference"] if config.algorithm.has_reference else []
        wanted += ["critic"] if config.algorithm.baseline == "critic" else []
    if set(wanted) - set(config.trainer.offload) and not config.cluster.cpu_offload:
        yield "trainer.offload", wanted
    if setting.sharded and not config.cluster.cpu_offload:
        yield "cluster.cpu_offload", True
    if getattr(engine, "sleep_level", None) == 0 and not config.rollout.max_staleness:
        yield f"{_ENGINE}sleep_level", 2
    if hasattr(engine, "memory_fraction") and engine.cache_gib is None:
        yield f"{_ENGINE}memory_fraction", 0.25
        least, most, _ = setting.engine_bytes()
        if least > most:
            yield f"{_ENGINE}memory_fraction", math.ceil(20 * least / setting.gpu.bytes) / 20
    tokens = config.trainer.tokens_per_microbatch
    for part in (2, 4, 8):
        if tokens // part >= max(_LEAST_TOKENS, config.rollout.max_episode_tokens or 0):
            yield "trainer.tokens_per_microbatch", tokens // part
    heads = setting.sizes.text.num_attention_heads
    if setting.shares and config.algorithm.baseline != "critic":
        fitting = (size for size in _RANKS if not (setting.ranks % size or heads % size))
        yield from (("trainer.sequence_parallel", size) for size in fitting if size > config.trainer.sequence_parallel)
    if config.model.dtype == "float32":
        yield "model.dtype", "bfloat16"
    if not setting.sharded and config.trainer.optimizer == "adamw":
        yield "trainer.optimizer", "adamw_8bit"
    if config.model.lora is None:
        yield "model.lora", LoraConfig()
    yield from (("ranks", ranks) for ranks in _RANKS if ranks > setting.ranks)


def _changed(setting: Setting, changes: dict[str, Any]) -> Setting | None:
    """The setting with the changes; None where it can't be, as peft isn't installed, say."""
    config, engine, ranks = setting.config, setting.engine, setting.ranks
    for path, value in changes.items():
        section, _, name = path.partition(".")
        if path == "ranks":
            ranks = value
        elif path.startswith(_ENGINE):
            engine = engine.model_copy(update={path.removeprefix(_ENGINE): value})
        else:
            config = config.model_copy(update={section: getattr(config, section).model_copy(update={name: value})})
    if ranks % config.trainer.sequence_parallel:
        return None
    if ranks > 1:  # What of models waits on the CPU over ranks is cluster.cpu_offload's.
        kept = [part for part in config.trainer.offload if part == "optimizer"]
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"offload": kept})})
    sizes, optimizer = setting.sizes, config.trainer.optimizer
    changed = replace(setting, config=config, engine=engine, ranks=ranks)
    if optimizer != "adamw" and (changed.sharded or "optimizer" in config.trainer.offload):
        return None
    if {"model.lora", "model.dtype", "trainer.optimizer"} & changes.keys():
        try:
            sizes = PolicySizes(config.model, sizes.source, torch.device("cuda"), optimizer)
        except ConfigError:
            return None
    return replace(changed, sizes=sizes)
