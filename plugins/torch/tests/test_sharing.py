"""Shared beginnings: log-probabilities, entropies and gradients equal those of each sequence by itself; models for
which they wouldn't be are told apart, aloud."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import ConfigError
from toolrl_plugin_torch.batch import Sample, pack
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.prefixes.sharing import choose, reason_by_config, reason_by_trial
from toolrl_plugin_torch.prefixes.tree_attention import NAME, over_trees

FAMILIES = ("llama", "qwen2", "qwen3", "gpt2", "granite", "cohere", "phi")
SYSTEM = list(range(3, 40))
"""What all prompts begin with."""


def exact_model(tiny: Any, family: str = "qwen3", dtype: str = "float64") -> Any:
    """One whose attention isn't rounded to float32 inside, as that of `eager` is."""
    model = tiny.model(family, dtype=dtype)
    model.set_attn_implementation("sdpa")
    return model


def draw(chance: torch.Generator, count: int) -> list[int]:
    return torch.randint(3, 97, (count,), generator=chance).tolist()


def groups_of_samples(seed: int = 0) -> list[Sample]:
    """Groups of four, one and three; prompts that have a beginning in common and one that hasn't; in the last group
    prompts that differ. Completions of one to thirty tokens, some in two turns with unsampled tokens between them."""
    chance = torch.Generator().manual_seed(seed)
    prompts = [[*SYSTEM, *draw(chance, 9)], [*SYSTEM, *draw(chance, 20)], draw(chance, 30)]
    groups = [[prompts[0]] * 4, [prompts[1]], [prompts[2], prompts[2], [*prompts[2][:10], *draw(chance, 12)]]]
    samples = []
    for group in groups:
        for prompt in group:
            first, between, second = (int(torch.randint(1, 11, (), generator=chance)) for _ in range(3))
            turns = int(torch.randint(2, (), generator=chance))
            mask = [0] * len(prompt) + [1] * first + ([0] * between + [1] * second) * turns + [0] * 2
            ids = [*prompt, *draw(chance, len(mask) - len(prompt))]
            samples.append(Sample(ids, mask, [0.0] * len(ids), [0.0] * len(ids)))
    # Two episodes that are equal, and one whose completion begins with another's.
    twin = samples[0]
    samples.append(twin)
    longer = [*twin.ids[:-1], 5, 6]
    samples.append(Sample(longer, [*twin.loss_mask[:-1], 1, 1], [0.0] * len(longer), [0.0] * len(longer)))
    return samples


def weights_of(samples: Sequence[Sample]) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(1)
    return [torch.randn(2, len(sample.ids), dtype=torch.float64, generator=chance) for sample in samples]


Result = tuple[list[torch.Tensor], dict[str, torch.Tensor]]


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def one_by_one(tiny: Any, model: Any, samples: Sequence[Sample], temperature: float) -> Result:
    """Log-probabilities and entropies of the trained tokens, and the gradients of a weighted sum, from full logits."""
    values = []
    for sample, weight in zip(samples, weights_of(samples), strict=True):
        ids, mask = torch.tensor([sample.ids]), torch.tensor(sample.loss_mask).bool()
        logprobs, entropy = tiny.naive(model, ids, torch.ones_like(ids), temperature)
        both = torch.stack([logprobs[0], entropy[0]])[:, mask]
        (both * weight[:, mask]).sum().backward()
        values.append(both.detach())
    return values, gradients(model)


def packed(
    model: Any, samples: Sequence[Sample], temperature: float, *, budget: int = 10_000, share: bool = True
) -> Result:
    """The same by micro-batches."""
    score, weights = TokenScorer(model), weights_of(samples)
    values: dict[int, torch.Tensor] = {}
    for batch in pack(samples, budget, share=share):
        with over_trees([model]) if share else nullcontext():
            scored = score(
                batch.input_ids_BT,
                batch.attention_mask_BT,
                batch.loss_mask_BT,
                temperature=temperature,
                entropy=True,
                tree=batch.tree,
            )
            assert scored.entropy_BT is not None
            loss = torch.zeros((), dtype=torch.float64)
            for row, index in enumerate(batch.samples):
                mask = batch.loss_mask_BT[row]
                both = torch.stack([scored.logprobs_BT[row], scored.entropy_BT[row]])[:, mask]
                weight = weights[index][:, torch.tensor(samples[index].loss_mask).bool()]
                loss = loss + (both * weight).sum()
                values[index] = both.detach()
            loss.backward()
    return [values[index] for index in range(len(samples))], gradients(model)


def differences(one: Result, other: Result) -> tuple[float, float]:
    """Greatest difference of a value, and of a gradient."""
    assert one[1].keys() == other[1].keys()
    value = max(float((a - b).abs().max()) for a, b in zip(one[0], other[0], strict=True))
    return value, max(float((one[1][name] - other[1][name]).abs().max()) for name in one[1])


@pytest.mark.parametrize(
    ("family", "budget"), [*((family, 150) for family in FAMILIES), ("qwen3", 10_000), ("qwen3", 1)]
)
def test_equals_each_sequence_by_itself_in_float64(tiny: Any, family: str, budget: int) -> None:
    model, samples = exact_model(tiny, family), groups_of_samples()
    shared = packed(model, samples, 0.8, budget=budget)
    value, gradient = differences(one_by_one(tiny, model, samples, 0.8), shared)
    assert value < 1e-11
    assert gradient < 1e-6
    assert sum(batch.positions for batch in pack(samples, 10_000, share=True)) < 0.6 * sum(len(s.ids) for s in samples)


def test_the_model_is_left_as_it_was(tiny: Any) -> None:
    model = tiny.model()
    with pytest.raises(KeyError), over_trees([model]):
        assert model.config._attn_implementation == NAME
        raise KeyError
    assert model.config._attn_implementation == "eager"
    assert choose("auto", [TokenScorer(model)], "trainer.share_prefix")
    assert model.config._attn_implementation == "eager"
    assert model.training


# Which models.


def config_of(name: str, **settings: Any) -> Any:
    return getattr(transformers, name)(**settings)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (config_of("MistralConfig", sliding_window=4096), "a window of the latest 4096 tokens"),
        (config_of("Qwen2Config", use_sliding_window=True, max_window_layers=1), "kind sliding_attention"),
        (config_of("Gemma3TextConfig"), "layers of the kind sliding_attention"),
        (config_of("GptOssConfig"), "layers of the kind sliding_attention"),
        (config_of("Llama4TextConfig"), "layers of the kind chunked_attention"),
        (config_of("Qwen3NextConfig"), "layers of the kind linear_attention"),
        (config_of("Lfm2Config", layer_types=["conv", "full_attention"], num_hidden_layers=2), "of the kind conv"),
        (config_of("FalconConfig", alibi=True), "biased by distance"),
        (
            config_of("LlamaConfig", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "rotary embedding (dynamic)",
        ),
        (config_of("T5Config"), "encoder-decoder"),
    ],
)  # fmt: skip
def test_what_is_silently_wrong_is_known_by_its_config(config: Any, words: str) -> None:
    for untried in (True, False):
        reason = reason_by_config(config, untried=untried)
        assert reason is not None
        assert words in reason


@pytest.mark.parametrize("family", ["mistral", "gpt_oss", "gemma2"])
def test_falls_back_aloud(tiny: Any, family: str, caplog: pytest.LogCaptureFixture) -> None:
    score = TokenScorer(tiny.model(family))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert not choose("auto", [score], "trainer.share_prefix")
    (record,) = caplog.records
    assert "compute every sequence whole, because its attention sees a window" in record.getMessage() or (
        "because it has layers of the kind" in record.getMessage()
    )
    with pytest.raises(ConfigError, match="can't compute common beginnings once, because") as caught:
        choose(True, [score], "trainer.share_prefix")
    assert caught.value.where == "trainer.share_prefix"
    caplog.clear()
    assert not choose(False, [score], "trainer.share_prefix")
    assert not caplog.records


def test_what_the_config_does_not_tell_the_trial_does(tiny: Any) -> None:
    """Here the window isn't in the config, but handed to the attention."""
    model = tiny.model("qwen3")
    assert reason_by_trial(TokenScorer(model)) is None
    for layer in model.model.layers:
        layer.self_attn.sliding_window = 4
    assert "'sliding_window': 4" in str(reason_by_trial(TokenScorer(model)))


def _reads_its_neighbour(model: Any) -> str:
    """Each token's embedding has something of the token before it, as with a convolution."""

    def mix(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output + output.roll(1, dims=1)

    model.model.embed_tokens.register_forward_hook(mix)
    return "log-probabilities of a trial were off by"


def _has_dropout(model: Any) -> str:
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    return "its attention isn't plain (causal: True, a mask of its own: False, dropout: 0.1"


def _is_not_causal(model: Any) -> str:
    model.model.layers[1].self_attn.is_causal = False
    return "its attention isn't plain (causal: False"


def _loses_arguments(model: Any) -> str:
    forward = model.model.forward
    model.model.forward = lambda input_ids, attention_mask=None, position_ids=None, use_cache=False, **_: forward(
        input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=use_cache
    )
    return "its layers don't hand on"


def _takes_no_argument_of_ours(model: Any) -> str:
    forward = model.model.forward

    def strict(*args: Any, token_tree: None = None, **kwargs: Any) -> Any:
        if token_tree is not None:
            raise TypeError("unexpected argument")
        return forward(*args, **kwargs)

    model.model.forward = strict
    return "it fails on a tree of tokens: TypeError: unexpected argument"


@pytest.mark.parametrize(
    "break_it", [_reads_its_neighbour, _has_dropout, _is_not_causal, _loses_arguments, _takes_no_argument_of_ours]
)
def test_a_model_that_only_looks_plain_fails_the_trial(tiny: Any, break_it: Callable[[Any], str]) -> None:
    model = tiny.model("qwen3")
    words = break_it(model)
    reason = reason_by_trial(TokenScorer(model))
    assert reason is not None
    assert reason.startswith(words)
    assert model.config._attn_implementation == "eager"


def test_bfloat16_passes_the_trial_and_a_wrong_model_does_not(tiny: Any) -> None:
    model = tiny.model("qwen3", dtype="bfloat16")
    assert reason_by_trial(TokenScorer(model)) is None
    _reads_its_neighbour(model)
    assert reason_by_trial(TokenScorer(model)) is not None


# The trainers.
