"""One batch that is trained on by so many ranks or by one process, and what comes of it.

    python -m fixed_batch ORDERS EVENTS     a rank's process, as a trainer worker starts it

The first rank leaves `fixed_batch.pt` in the folder that its order names.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers

from toolrl.cluster.messages import pack_error
from toolrl.cluster.trainer_messages import Ended
from toolrl.loop.ranks import Ranks
from toolrl.types import Episode, Group, Message, RewardEntry, Segment, Task, Turn
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.options import TrainerConfig
from toolrl_plugin_torch.policy import Policy
from toolrl_plugin_torch.sharding.process_group import join
from toolrl_plugin_torch.trainer import PolicyTrainer

LEAVES = "fixed_batch.pt"
VOCABULARY, PROMPT = 61, 20
REWARDS = ([1.0, 0.0, 0.5], [0.0, 1.0], [1.0, 0.0, 0.0, 0.5], [0.0, 2.0], [0.5, 1.0])
"""Of the episodes of each group: five groups, which two ranks can't halve."""


class PadOnly:
    """A tokenizer as far as a trainer sees it."""

    pad_token_id = 0


def model() -> Any:
    """A Qwen3 of random weights."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).float().train()


def groups() -> list[Group]:
    """The batch."""
    return [_group(number, rewards) for number, rewards in enumerate(REWARDS)]


def _group(number: int, rewards: list[float]) -> Group:
    chance = torch.Generator().manual_seed(number)
    task = Task(f"task-{number}", (Message("user", "?"),))
    prompt = torch.randint(3, VOCABULARY, (PROMPT,), generator=chance).tolist()
    episodes = []
    for index, reward in enumerate(rewards):
        length = 6 + (5 * index + 3 * number) % 9
        answer = torch.randint(3, VOCABULARY, (length,), generator=chance).tolist()
        end = PROMPT + length
        episodes.append(
            Episode(
                id=f"{task.id}#{index}", task=task, environment="default", group=f"group-{number}", index=index,
                ids=(*prompt, *answer), loss_mask=(0,) * PROMPT + (1,) * length,
                logprobs=(0.0,) * PROMPT + (-3.0,) * length, weight_versions=(-1,) * PROMPT + (0,) * length,
                prompt_length=PROMPT, messages=(), stop_reason="answer",
                turns=(Turn(0, (Segment("model", "x" * length, (PROMPT, end)),), (), (), "stop"),),
                rewards=(RewardEntry(None, "reward:exact", reward),),
            )
        )  # fmt: skip
    return Group(f"group-{number}", task, tuple(episodes))


def trained(ranks: Ranks, folder: Path) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics of two steps on the batch, and the weights after them."""
    policy = Policy(model(), PadOnly(), "fixed", torch.device("cpu"), torch.float32)
    settings = TrainerConfig(learning_rate=1e-3, steps=4, tokens_per_microbatch=64)
    algorithm = AlgorithmConfig(preset="dapo", entropy_coef=0.01)
    trainer = PolicyTrainer(policy, settings, algorithm, folder, temperature=1.0, longest=32, ranks=ranks)
    metrics = [trainer.update(groups()) for _ in range(2)]
    return metrics, {name: value.clone() for name, value in policy.model.state_dict().items()}


def main(arguments: list[str]) -> int:
    orders, events = (Connection(int(word)) for word in arguments)
    order, environment = orders.recv()
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        ranks = join("cpu", 120.0)
        found = trained(ranks, Path(order.run_dir))
        if ranks.first:
            torch.save(found, Path(order.run_dir) / LEAVES)
        ranks.leave()
    except Exception as error:  # noqa: BLE001 - the test raises it
        events.send(Ended(error=pack_error(error)))
        return 1
    events.send(Ended(0))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
