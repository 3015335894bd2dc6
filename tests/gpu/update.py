"""Tokens a second of an update, model FLOP utilisation and peak memory, with shared beginnings and without.

Floating-point operations that the model needs for an update, forward and backward, after PaLM (arXiv 2204.02311,
appendix B), but with attention over what is there to be seen (causal) and the head over trained tokens only:

    6 · body · positions  +  6 · vocabulary · width · trained tokens  +  12 · layers · heads · head size · Σ context

`body` are the parameters but those of embedding and head. What is computed twice (checkpointing, the head's logits in
the backward pass) doesn't count. With shared beginnings the positions are those that are left: a prompt once a group.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clock import Clock, Memory
from settings import Settings

GROUP = 8


@dataclass(frozen=True)
class Load:
    """What an update trains on."""

    groups: int
    prompt: int
    completion: int
    budget: int
    """Tokens of a micro-batch."""


FULL = (Load(16, 256, 256, 16384), Load(16, 256, 256, 65536), Load(8, 512, 1024, 32768))
DRY = (Load(1, 40, 16, 512),)


def run(settings: Settings) -> dict[str, Any]:
    import torch

    from toolrl.errors import ToolrlError

    rows = []
    for load in DRY if settings.dry else FULL:
        for shared in (False, True):
            row = {**vars(load), "shared": shared}
            try:
                row |= _measure(settings, load, shared=shared)
            except (torch.OutOfMemoryError, ToolrlError) as error:
                row["error"] = str(error).partition(". ")[0]
            rows.append(row)
    return {"rows": rows, "data_sheet": settings.card.get("data_sheet", {})}


def _measure(settings: Settings, load: Load, *, shared: bool) -> dict[str, Any]:
    import torch

    from toolrl_plugin_torch.algorithm import AlgorithmConfig
    from toolrl_plugin_torch.options import ModelConfig, TrainerConfig
    from toolrl_plugin_torch.policy import load_policy
    from toolrl_plugin_torch.trainer import PolicyTrainer

    memory = Memory(settings.device)
    memory.reset()
    policy = load_policy(ModelConfig(path=settings.model), settings.model, torch.device(settings.device))
    trainer_settings = TrainerConfig(
        steps=1000, learning_rate=1e-7, share_prefix=shared, tokens_per_microbatch=load.budget
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = PolicyTrainer(
            policy, trainer_settings, AlgorithmConfig(preset="grpo"), Path(folder), temperature=1.0, longest=2048
        )
        episodes = groups(policy.model.config.get_text_config().vocab_size, load)
        rounds = 1 if settings.dry else 3
        seconds = statistics.median(
            Clock(settings.device).times(lambda: trainer.update(episodes), rounds=rounds, warm=1)
        )
    operations = model_operations(policy.model, load, shared=shared)
    name = str(policy.dtype).removeprefix("torch.")
    measured, sheet = (settings.card.get(key, {}).get(name) for key in ("matmul", "data_sheet"))
    count = load.groups * GROUP
    return {
        "dtype": name,
        "seconds": seconds,
        "tokens_per_second": count * (load.prompt + load.completion) / seconds,
        "trained_per_second": count * load.completion / seconds,
        "operations": operations,
        "of_measured_peak": operations / seconds / measured if measured else None,
        "of_data_sheet": operations / seconds / sheet if sheet else None,
        "peak_bytes": memory.peak(),
    }


def groups(vocabulary: int, load: Load) -> list[Any]:
    """Groups of random tokens of which half are right, so that every token is trained."""
    from toolrl.types import Group, RewardEntry
    from toolrl_testing.fakes import make_episode, make_task

    chance = random.Random(0)
    found = []
    for number in range(load.groups):
        task = make_task(id=f"task-{number}")
        prompt = [chance.randrange(vocabulary) for _ in range(load.prompt)]
        mask = (0,) * load.prompt + (1,) * load.completion
        episodes = [
            make_episode(
                task=task, index=index, rewards=[RewardEntry(None, "reward:made-up", float(index % 2))],
                ids=(*prompt, *(chance.randrange(vocabulary) for _ in range(load.completion))), loss_mask=mask,
                logprobs=(0.0,) * len(mask), weight_versions=tuple(bit - 1 for bit in mask), prompt_length=load.prompt,
            )
            for index in range(GROUP)
        ]  # fmt: skip
        found.append(Group(task.id, task, tuple(episodes)))
    return found


def model_operations(model: Any, load: Load, *, shared: bool) -> float:
    """Of one update, by the formula above."""
    config = model.config.get_text_config()
    ends = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    body = sum(p.numel() for p in model.parameters() if id(p) not in ends)
    head = model.get_output_embeddings().weight.numel()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = config.num_hidden_layers * config.num_attention_heads * size
    prompts, episodes = load.groups * (1 if shared else GROUP), load.groups * GROUP
    positions = prompts * load.prompt + episodes * load.completion
    whole = load.prompt + load.completion
    context = prompts * load.prompt**2 / 2 + episodes * (whole**2 - load.prompt**2) / 2
    return 6.0 * body * positions + 6.0 * head * episodes * load.completion + 12.0 * width * context


def headline(figures: dict[str, Any]) -> str:
    rows = [row for row in figures["rows"] if row.get("tokens_per_second")]
    if not rows:
        return "no update could be measured"
    best = max(rows, key=lambda row: row["tokens_per_second"])
    used = best["of_data_sheet"] or best["of_measured_peak"]
    share = f", utilisation {used:.0%}" if used else ""
    kind = "shared" if best["shared"] else "whole"
    return f"{best['tokens_per_second']:,.0f} tokens/s with prompts {kind}{share}"
