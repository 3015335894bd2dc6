"""Settings under which a run fits, each found by planning it: one change first, then two and three together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice
from typing import Any

import torch

from toolrl.errors import ConfigError
from toolrl_plugin_torch.options import LoraConfig
from toolrl_plugin_torch.plan.memory import MemoryPlan, Setting, plan_memory
from toolrl_plugin_torch.plan.sizes import PolicySizes

Change = tuple[str, Any]
"""A path in the config and its new value; `ranks` is the number of processes."""
_SHOWN = 3
_TOGETHER = 4
_RANKS = (2, 4, 8, 16, 32)
_LEAST_TOKENS = 2048
_ENGINE = "engine.options."


def advice(setting: Setting) -> list[tuple[dict[str, Any], MemoryPlan]]:
    """The smallest sets of changes with which the setting fits, each with its plan; at most three of one size."""
    changes = list(_changes(setting))
    sizes: dict[str, PolicySizes] = {}
    for count in range(1, _TOGETHER + 1):
        fitting = (
            ({path: value if path != "model.lora" else {} for path, value in chosen}, plan)
            for chosen in combinations(changes, count)
            if len({path for path, _ in chosen}) == count
            and (changed := _changed(setting, chosen, sizes)) is not None
            and (plan := plan_memory(changed)).verdict == "yes"
        )
        if found := list(islice(fitting, _SHOWN)):
            return found
    return []


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
    if hasattr(engine, "cache_tokens"):
        yield f"{_ENGINE}cache_tokens", max(setting.longest, 64) * 8
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


def _changed(setting: Setting, changes: tuple[Change, ...], known: dict[str, PolicySizes]) -> Setting | None:
    """The setting with the changes; None where it can't be, as peft isn't installed, say."""
    config, engine, ranks = setting.config, setting.engine, setting.ranks
    for path, value in changes:
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
    if _key(config) != _key(setting.config):
        try:
            sizes = known.get(_key(config)) or PolicySizes(config.model, sizes.source, torch.device("cuda"), optimizer)
        except ConfigError:
            return None
        known[_key(config)] = sizes
    return replace(changed, sizes=sizes)


def _key(config: Any) -> str:
    """Of the sizes of a config's policy: what changes them."""
    return f"{config.model.lora} {config.model.dtype} {config.trainer.optimizer}"
