"""Tiny random models of several families, random batches, the obvious way to score tokens, and real ranks."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from toolrl.types import Episode, EpisodeFailure, Group, Message, RewardEntry, Segment, Task, Trajectory, Turn
from toolrl_testing.fakes import one_trajectory

if TYPE_CHECKING:
    import torch

    from toolrl_plugin_torch.policy import PolicyModel
    from toolrl_plugin_torch.trainer import PolicyTrainer, SupervisedTrainer

collect_ignore_glob = [] if all(map(importlib.util.find_spec, ("torch", "transformers"))) else ["test_*.py"]
"""Without `toolrl[train]` there is nothing to test here."""

VOCABULARY = 97

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}
_GROUPED: dict[str, Any] = {**_COMMON, "num_key_value_heads": 2}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", {**_GROUPED, "head_dim": 8, "tie_word_embeddings": True}),
    "llama": ("LlamaConfig", {**_GROUPED, "tie_word_embeddings": False}),
    "gemma2": ("Gemma2Config", {**_GROUPED, "head_dim": 8, "final_logit_softcapping": 2.5}),
    "cohere": ("CohereConfig", {**_GROUPED, "logit_scale": 0.0625}),
    "granite": ("GraniteConfig", {**_GROUPED, "logits_scaling": 8.0, "residual_multiplier": 0.22}),
    "phi": ("PhiConfig", {**_GROUPED, "resid_pdrop": 0.0, "embd_pdrop": 0.0}),
    "qwen2": ("Qwen2Config", {**_GROUPED, "tie_word_embeddings": True}),
    "gpt2": (
        "GPT2Config",
        {**_COMMON, "n_inner": 48, "n_positions": 128, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "mistral": ("MistralConfig", {**_GROUPED, "sliding_window": 4}),
    "gpt_oss": ("GptOssConfig", {**_GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""Tied and untied heads, a soft cap, two kinds of scale, a bias; learned positions, windows, sinks."""


class PadOnly:
    """A tokenizer as far as trainers and checkpoints see it."""

    pad_token_id = 0

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


class Tiny:
    """The helpers. Imports of torch wait until a test asks for one."""

    families = tuple(FAMILIES)
    shape = _GROUPED
    vocabulary = VOCABULARY

    @staticmethod
    def model(family: str = "qwen3", *, dtype: str = "float32", seed: int = 0, **fields: Any) -> Any:
        """A random model in train mode, with weights large enough that its predictions aren't all alike. `fields`: of
        its config."""
        import torch
        import transformers

        torch.manual_seed(seed)
        name, settings = FAMILIES[family]
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**{**settings, **fields}))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim >= 2:
                    parameter.mul_(8.0)
        return model.to(getattr(torch, dtype)).train()

    @classmethod
    def policy(cls, model: Any = "qwen3", **settings: Any) -> PolicyModel:
        """A policy of a model, or of a new one of this family."""
        import torch

        from toolrl_plugin_torch.policy import PolicyModel

        model = cls.model(model, **settings) if isinstance(model, str) else model
        return PolicyModel(model, PadOnly(), "tiny", torch.device("cpu"), next(model.parameters()).dtype)

    @classmethod
    def save(cls, folder: Path, family: str = "qwen3", **settings: Any) -> Path:
        """A model's folder, with a tokenizer of a word for each id."""
        import transformers
        from tokenizers import Tokenizer, models

        cls.model(family, **settings).save_pretrained(folder)
        words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, "w3"))
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0").save_pretrained(folder)
        return folder

    @staticmethod
    def load(folder: Path, lora: Mapping[str, Any] | None = None, **fields: Any) -> PolicyModel:
        """The policy of a model's or an adapter's folder. `fields`: of the config's section `model`."""
        import torch

        from toolrl_plugin_torch.options import ModelConfig
        from toolrl_plugin_torch.policy import load_policy

        torch.manual_seed(0)
        return load_policy(ModelConfig(path=str(folder), lora=lora, **fields), str(folder), torch.device("cpu"))

    @staticmethod
    def logits(model: Any) -> torch.Tensor:
        """Of a few tokens."""
        import torch

        with torch.no_grad():
            found: torch.Tensor = model(input_ids=torch.tensor([[5, 6, 7, 8, 9, 10]])).logits
        return found

    @classmethod
    def group(
        cls,
        rewards: Sequence[float | None],
        seed: int = 0,
        *,
        prompt: int = 4,
        lengths: Sequence[int] = (9, 14, 6, 11),
        **fields: Any,
    ) -> Group:
        """Episodes of one prompt with two turns, a tool's answer between them; None as reward is a failure."""
        import torch

        chance = torch.Generator().manual_seed(seed)

        def draw(count: int) -> list[int]:
            return torch.randint(3, VOCABULARY, (count,), generator=chance).tolist()

        beginning, name, episodes = draw(prompt), f"group-{seed}", []
        for index, reward in enumerate(rewards):
            length = lengths[index % len(lengths)]
            ids = (*beginning, *draw(length))
            mask = [0] * prompt + [1] * (length // 2 - 1) + [0] * 2 + [1] * (length - length // 2 - 1)
            known = {"index": index, "group": name, "id": f"{name}#{index}", "failed": reward is None}
            episodes.append(_make_episode(mask, reward=reward or 0.0, ids=ids, **known, **fields))
        return Group(name, Task(f"task-{seed}", (Message("user", "?"),)), tuple(episodes))

    @staticmethod
    def spread(episode: Episode, parts: Sequence[int]) -> Episode:
        """The turns in trajectories of their own, by the part of each, every one after all that came before it."""
        whole, found = episode.main, []
        for part in sorted(set(parts)):
            turns = tuple(turn for turn, its in zip(whole.turns, parts, strict=True) if its == part)
            spans = [segment.tokens for turn in turns for segment in turn.segments]
            own = [int(any(start <= place < end for start, end in spans)) for place in range(spans[-1][1])]
            logprobs = tuple(bit * value for bit, value in zip(own, whole.logprobs, strict=False))
            versions = tuple(bit - 1 for bit in own)
            teacher = whole.teacher_logprobs and tuple(
                bit * value for bit, value in zip(own, whole.teacher_logprobs, strict=False)
            )
            ids = whole.ids[: len(own)]
            found.append(Trajectory(ids, tuple(own), logprobs, versions, spans[0][0], turns, teacher_logprobs=teacher))
        return replace(episode, trajectories=tuple(found))

    @classmethod
    def trainer(
        cls, folder: Path, policy: PolicyModel | None = None, algorithm: Mapping[str, Any] | None = None, **fields: Any
    ) -> PolicyTrainer:
        """A trainer of a policy, or of a new one. `fields`: its own, and those of the config's section."""
        from toolrl_plugin_torch.algorithm import AlgorithmConfig
        from toolrl_plugin_torch.options import TrainerConfig
        from toolrl_plugin_torch.trainer import PolicyTrainer

        own = {"temperature": 1.0, "longest": 16}
        own |= {name: fields.pop(name) for name in (*own, "estimator", "custom_loss", "ranks") if name in fields}
        settings = TrainerConfig(**{"learning_rate": 1e-3, "steps": 10, **fields})
        config = AlgorithmConfig(**(algorithm or {"preset": "grpo"}))
        return PolicyTrainer(policy or cls.policy(), settings, config, folder, **own)

    @staticmethod
    def fine_tuner(folder: Path, policy: PolicyModel, **settings: Any) -> SupervisedTrainer:
        from toolrl_plugin_torch.options import SftConfig
        from toolrl_plugin_torch.trainer import SupervisedTrainer

        return SupervisedTrainer(policy, SftConfig(**{"from_run": "x", "steps": 4, **settings}), folder)

    @staticmethod
    def naive(
        model: Any, input_ids_BT: torch.Tensor, attention_mask_BT: torch.Tensor, temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of each token and entropy of its distribution [B, T] from the full logits; 0 on the first."""
        import torch

        logits_BTV = model(input_ids=input_ids_BT, attention_mask=attention_mask_BT).logits
        wide = torch.float64 if logits_BTV.dtype == torch.float64 else torch.float32
        all_BTV = (logits_BTV[:, :-1].to(wide) / temperature).log_softmax(dim=-1)
        logprobs = all_BTV.gather(2, input_ids_BT[:, 1:, None]).squeeze(2)
        entropy = -(all_BTV.exp() * all_BTV).sum(dim=-1)
        first = torch.zeros_like(logprobs[:, :1])
        return torch.cat([first, logprobs], dim=1), torch.cat([first, entropy], dim=1)

    @staticmethod
    def batch(
        lengths: tuple[int, ...] = (17, 12, 5), *, seed: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Right-padded ids, attention mask and loss mask [B, T]; the loss mask has several stretches a row."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        shape = (len(lengths), max(lengths))
        input_ids_BT = torch.randint(3, VOCABULARY, shape, generator=generator)
        attention_mask_BT = torch.zeros(shape, dtype=torch.int64)
        loss_mask_BT = torch.rand(shape, generator=generator) < 0.5
        for row, length in enumerate(lengths):
            attention_mask_BT[row, :length] = 1
            input_ids_BT[row, length:] = 0
            loss_mask_BT[row, length:] = False
            loss_mask_BT[row, length - 1] = True
        loss_mask_BT[:, 0] = False
        return input_ids_BT, attention_mask_BT, loss_mask_BT


@pytest.fixture(scope="session")
def tiny() -> type[Tiny]:
    return Tiny


def _make_episode(
    mask: Sequence[int] = (0, 0, 1, 1), *, reward: float = 0.0, failed: bool = False, **fields: Any
) -> Episode:
    """An episode from a loss mask: ids count from 1, each stretch of sampled tokens is a turn."""
    turns: list[Turn] = []
    start = None
    for position, sampled in enumerate((*mask, 0)):
        if sampled and start is None:
            start = position
        elif not sampled and start is not None:
            segment = Segment("model", "x" * (position - start), (start, position))
            turns.append(Turn(len(turns), (segment,), (), (), "stop"))
            start = None
    defaults: dict[str, Any] = {
        "id": "task#0",
        "task": Task("task", (Message("user", "?"),)),
        "environment": "default",
        "group": "group",
        "index": 0,
        "ids": tuple(range(1, len(mask) + 1)),
        "loss_mask": tuple(mask),
        "logprobs": tuple(-0.5 * sampled for sampled in mask),
        "weight_versions": tuple(0 if sampled else -1 for sampled in mask),
        "prompt_length": next((i for i, sampled in enumerate(mask) if sampled), len(mask)),
        "turns": tuple(turns),
        "messages": (),
        "stop_reason": "error" if failed else "answer",
        "rewards": (RewardEntry(None, "reward:exact", reward),),
        "failure": EpisodeFailure("tool", "box", "it died") if failed else None,
    }
    return one_trajectory(**{**defaults, **fields})


@pytest.fixture
def make_episode() -> Callable[..., Episode]:
    return _make_episode


def _on_ranks(size: int, command: Sequence[str], variables: Sequence[Mapping[str, str]] = ({},) * 8) -> None:
    """Run a command as ranks, in an environment as torchrun makes it. `{rank}` in an argument is the rank's number."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = []
    for rank in range(size):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_PORT": port}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", **place, **variables[rank]}
        arguments = [part.replace("{rank}", str(rank)) for part in command]
        processes.append(subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        for rank, process in enumerate(processes):
            _, error = process.communicate(timeout=600)
            assert process.returncode == 0, f"rank {rank}: {error[-3000:]}"
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="session")
def beside() -> Callable[[str], Any]:
    """A module in this folder, by its name."""

    def module(name: str) -> Any:
        sys.path.insert(0, str(Path(__file__).parent))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(str(Path(__file__).parent))

    return module


@pytest.fixture(scope="session")
def train(beside: Callable[[str], Any]) -> Any:
    """`ranks_worker.train`."""
    return beside("ranks_worker").train


@pytest.fixture(scope="session")
def on_ranks() -> Callable[..., None]:
    """`on_ranks(size, command, variables=…)`: waits until all have ended well."""
    return _on_ranks
