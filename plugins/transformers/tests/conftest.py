"""Small random models and an engine around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from toolrl.protocols import BuildContext
from toolrl_plugin_transformers.cache import SlotCache
from toolrl_plugin_transformers.engine import TransformersEngine
from toolrl_plugin_transformers.model import ModelRunner
from toolrl_plugin_transformers.options import TransformersEngineOptions

torch.set_num_threads(1)

VOCABULARY = 300
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


class Weights:
    """A WeightSource around a module."""

    def __init__(self, module: Any, version: int = 0) -> None:
        self._module = module
        self.version = version

    def module(self) -> Any:
        return self._module

    def state_dict(self) -> Any:
        return self._module.state_dict()

    def path(self) -> Any:
        raise NotImplementedError("the embedded engine takes the module")


def _build(config: Any, *, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """`build(config, seed=0)`: a model with random weights, in eval mode."""
    return _build


@pytest.fixture(scope="session")
def sizes() -> dict[str, Any]:
    """Config arguments of a small model."""
    return dict(SIZES)


@pytest.fixture(scope="session")
def weights() -> type[Weights]:
    """`weights(module, version=0)`: a WeightSource."""
    return Weights


@pytest.fixture(scope="session")
def byte_tokenizer() -> Callable[..., Any]:
    """`byte_tokenizer(*extra)`: ids 0 … 255 are the bytes, in order; `extra` are tokens of their own after them."""
    return _byte_tokenizer


def _byte_tokenizer(*extra: str) -> Any:
    characters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(characters, key=_byte))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_tokens(list(extra))
    return fast


def _byte(character: str) -> int:
    """The byte that GPT-2's table writes as this character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    code = ord(character)
    return code if code in printable else [byte for byte in range(256) if byte not in printable][code - 256]


@pytest.fixture(scope="session")
def plain_logprobs() -> Callable[..., list[float]]:
    """`plain_logprobs(module, prompt, sampled, temperature=1)`: under one forward pass without cache or padding."""

    def compute(module: Any, prompt: list[int], sampled: tuple[int, ...], temperature: float = 1.0) -> list[float]:
        with torch.no_grad():
            logits = module(torch.tensor([[*prompt, *sampled]]), use_cache=False).logits[0].float()
        table = torch.log_softmax(logits / temperature, dim=-1)
        return [float(table[len(prompt) + i - 1, token]) for i, token in enumerate(sampled)]

    return compute


@pytest.fixture(scope="session")
def qwen3() -> Any:
    return _build(transformers.Qwen3Config(**SIZES, head_dim=8))


EngineFactory = Callable[..., AbstractAsyncContextManager[TransformersEngine]]


@pytest.fixture
def engine() -> EngineFactory:
    """`async with engine(module, tokenizer=…, seed=…, **options) as running:`"""

    @asynccontextmanager
    async def make(
        module: Any, *, tokenizer: Any = None, seed: int = 0, overlap: bool = False, **options: Any
    ) -> AsyncIterator[TransformersEngine]:
        context = BuildContext("transformers", seed=seed, tokenizer=tokenizer, weights=Weights(module), overlap=overlap)
        running = TransformersEngine(TransformersEngineOptions(**options), context)
        await running.start()
        try:
            yield running
        finally:
            await running.stop()

    return make


@pytest.fixture
def generate(engine: EngineFactory) -> Callable[..., list[Any]]:
    """`generate(module, (prompt, sampling), …, **options)`: generations of sessions 0, 1 …, asked for at once."""

    def run(module: Any, *requests: tuple[list[int], Any], **options: Any) -> list[Any]:
        async def work() -> list[Any]:
            async with engine(module, **options) as running:
                jobs = (running.generate(p, s, session=str(number)) for number, (p, s) in enumerate(requests))
                return list(await asyncio.gather(*jobs))

        return asyncio.run(asyncio.wait_for(work(), 120))

    return run


@pytest.fixture(scope="session")
def both_passes() -> Callable[[Any], list[torch.Tensor]]:
    """`both_passes(module)`: logits `[3, 3, V]` by the shorter pass and by the module itself, of two prefills (the
    first prompt is 1, 2, 3) and a step of decoding."""

    def run(module: Any) -> list[torch.Tensor]:
        found = []
        for use in (True, False):
            runner = ModelRunner(module)
            assert runner.direct is not None
            runner.direct = runner.direct if use else None
            runner.enter()
            slots = SlotCache(runner.shape, 1 << 20)
            slots.reserve(3, 40, used=0)
            with torch.no_grad():
                first = runner.prefill(slots, 0, [[1, 2, 3], list(range(20)), [7]], [0, 0, 0])
                second = runner.prefill(slots, 0, [[4], [5, 6], [8, 9, 10]], [3, 20, 1])
                third = runner.decode(slots, torch.tensor([11, 12, 13]), torch.tensor([4, 22, 4]), 23)
            runner.leave()
            found.append(torch.stack([first, second, third]).float())
        return found

    return run
