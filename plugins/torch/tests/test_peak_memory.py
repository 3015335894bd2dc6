"""With a real vocabulary no tensor of a training step is as large as all its logits, forward or backward.

Every operation's tensors are looked at as torch computes them. The model is tiny but for its 151,936 tokens, which
makes the head's weight the largest tensor there has to be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from toolrl.types import Group, Message, Task
from toolrl_plugin_torch import logprob
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.options import TrainerConfig
from toolrl_plugin_torch.trainer import PolicyTrainer

VOCABULARY = 151_936
HIDDEN = 16
EPISODES, TOKENS = 3, 150
"""Few enough that their probabilities are kept where that is allowed."""
ROWS = 128
"""Of a chunk, so that there are three."""


class Largest(TorchDispatchMode):
    """The greatest number of elements of any tensor that an operation gives, with its name."""

    def __init__(self) -> None:
        super().__init__()
        self.found = (0, "")

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.found = max(self.found, (leaf.untyped_storage().nbytes() // leaf.itemsize, str(function)))
        return result


def policy(tiny: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    return tiny.policy(transformers.Qwen3ForCausalLM(config))


def ids(seed: int) -> tuple[int, ...]:
    chance = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, VOCABULARY, (TOKENS,), generator=chance).tolist())


MASK = (0,) * 20 + (1,) * (TOKENS - 20)


@pytest.mark.parametrize(("share", "kept"), [(True, 2**28), (True, 0), (False, 2**28)])
def test_a_step_never_holds_all_logits(
    tiny: Any, tmp_path: Path, make_episode: Any, monkeypatch: pytest.MonkeyPatch, share: bool, kept: int
) -> None:
    """With an entropy term and a KL term, which want more of a distribution than one token's probability; where
    probabilities are kept for the backward pass, and where there is no memory for it."""
    monkeypatch.setattr(logprob, "_memory", lambda device: (2**22, kept))
    monkeypatch.setattr(logprob, "_MIN_ROWS", ROWS)
    trainer = PolicyTrainer(
        policy(tiny),
        TrainerConfig(learning_rate=1e-3, share_prefix=share, tokens_per_microbatch=EPISODES * TOKENS),
        AlgorithmConfig(preset="grpo", kl_coef=0.1, entropy_coef=0.01),
        tmp_path,
        temperature=1.0,
        longest=TOKENS,
    )
    episodes = tuple(
        make_episode(MASK, reward=float(index % 2), ids=(*ids(9)[:20], *ids(index)[20:]), index=index, id=f"t#{index}")
        for index in range(EPISODES)
    )
    with Largest() as largest:
        metrics = trainer.update([Group("g", Task("t", (Message("user", "?"),)), episodes)])
    assert metrics["entropy"] > 0
    check(largest)


def check(largest: Largest) -> None:
    logits = EPISODES * sum(MASK) * VOCABULARY
    elements, operation = largest.found
    assert elements >= VOCABULARY * HIDDEN, "it looked: the head's gradient is there"
    assert elements < logits / 2, f"{operation} gives {elements:,} elements; all logits would be {logits:,}"
