"""Selected log-probabilities against the full logits: values, entropies, gradients, for heads of several kinds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from toolrl.errors import EngineError
from toolrl_plugin_torch.head import HeadTransform, probe_head
from toolrl_plugin_torch.logprob import TokenScorer, selected_logprobs
from toolrl_plugin_torch.sampling_masks import Kept, decode, encode

FAMILIES = ("qwen3", "llama", "gemma2", "cohere", "granite", "phi")


def _gradients(model: Any) -> dict[str, torch.Tensor]:
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return gradients


def _naive_and_scored(tiny: Any, model: Any, scorer: TokenScorer, temperature: float) -> tuple[float, float]:
    """Greatest difference of values, and of gradients relative to the greatest gradient."""
    ids_BT, attention_BT, mask_BT = tiny.batch()
    weights_BT = torch.randn(ids_BT.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    results = []
    for scored in (False, True):
        if scored:
            result = scorer(ids_BT, attention_BT, mask_BT, temperature=temperature, entropy=True)
            logprobs_BT, entropy_BT = result.logprobs_BT, result.entropy_BT
        else:
            logprobs_BT, entropy_BT = (x * mask_BT for x in tiny.naive(model, ids_BT, attention_BT, temperature))
        loss = (logprobs_BT.double() * weights_BT).sum() + (entropy_BT.double() * weights_BT.flip(0)).sum()
        loss.backward()
        results.append((logprobs_BT.detach(), entropy_BT.detach(), _gradients(model)))
    (naive_lp, naive_h, naive_g), (lp, h, g) = results
    assert naive_g.keys() == g.keys()
    value = max(float((naive_lp - lp).abs().max()), float((naive_h - h).abs().max()))
    greatest = max(float(x.abs().max()) for x in naive_g.values())
    return value, max(float((naive_g[name] - g[name]).abs().max()) for name in g) / greatest


@pytest.mark.parametrize(("dtype", "temperature"), [("float64", 1.0), ("float64", 0.7), ("float32", 1.0)])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_full_logits(tiny: Any, family: str, dtype: str, temperature: float) -> None:
    model = tiny.model(family, dtype=dtype)
    scorer = TokenScorer(model)
    assert scorer.fallback is None
    value, gradient = _naive_and_scored(tiny, model, scorer, temperature)
    assert value < (1e-12 if dtype == "float64" else 1e-4)
    assert gradient < (1e-10 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_logits_of_bfloat16_models_are_float32(bias: bool, keep: bool) -> None:
    """Rounded to bfloat16 they move these log-probabilities by up to 0.06."""
    chance = torch.Generator().manual_seed(0)
    hidden, weight, bias_V = (torch.randn(*shape, generator=chance) for shape in ((6, 64), (2500, 64), (2500,)))
    given = [it.bfloat16().requires_grad_() for it in (hidden, weight, bias_V)]
    exact = [it.detach().double().requires_grad_() for it in given]
    labels = torch.arange(0, 2500, 450)
    logprobs, _ = selected_logprobs(*given[:2], given[2] if bias else None, labels, keep=keep)
    wanted, _ = selected_logprobs(*exact[:2], exact[2] if bias else None, labels)
    assert logprobs.dtype == torch.float32
    assert (logprobs - wanted).abs().max() < 1e-4
    logprobs.sum().backward()
    wanted.sum().backward()
    for one, other in zip(given[: 2 + bias], exact, strict=False):
        assert (one.grad - other.grad).abs().max() < 0.02 * other.grad.abs().max()


KEPT = Kept.joined(
    [decode(encode([[3], [0, 4, 9]]), [3, 4]), None, decode(encode([range(11), [5, 10]]), [0, 5])], (2, 3, 2)
)
"""Of seven tokens; the three in the middle may be any id."""


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("chunk_rows", [1, 3, 1000])
@pytest.mark.parametrize("transform", [HeadTransform(), HeadTransform(0.25), HeadTransform(2.0, 3.0)])
@pytest.mark.parametrize("kept", [None, KEPT])
def test_gradient_is_the_derivative(
    kept: Kept | None, transform: HeadTransform, chunk_rows: int, keep: bool, entropy: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.randint(0, 11, (7,), generator=generator) if kept is None else torch.tensor([3, 4, 2, 7, 7, 0, 5])

    def function(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return selected_logprobs(
            *inputs, labels, 0.8, transform=transform, entropy=entropy, kept=kept, chunk_rows=chunk_rows, keep=keep
        )

    assert torch.autograd.gradcheck(function, (hidden, weight, bias))
    logits = transform.apply_(hidden.detach() @ weight.detach().t() + bias.detach()) / 0.8
    if kept is not None:
        logits[kept.dropped(0, logits)] = -torch.inf
        assert logits.isfinite().sum(1).tolist() == [1, 3, 11, 11, 11, 11, 2]
    wanted = torch.distributions.Categorical(logits=logits)
    assert torch.allclose(function(hidden, weight, bias)[0], wanted.log_prob(labels), atol=1e-12)
    assert not entropy or torch.allclose(function(hidden, weight, bias)[1], wanted.entropy(), atol=1e-12)


def test_equals_generation_token_by_token(tiny: Any) -> None:
    """What an engine computes while sampling, with a key-value cache, is what one padded pass gives."""
    model = tiny.model()
    scorer = TokenScorer(model)
    ids_BT, attention_BT, mask_BT = tiny.batch((17, 9))
    with torch.no_grad():
        scored_BT = scorer(ids_BT, attention_BT, mask_BT, temperature=0.9).logprobs_BT
        for row, length in enumerate((17, 9)):
            cache = None
            for t in range(length - 1):
                output = model(input_ids=ids_BT[row : row + 1, t : t + 1], past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                logprob = (output.logits[0, -1] / 0.9).log_softmax(-1)[ids_BT[row, t + 1]]
                if mask_BT[row, t + 1]:
                    assert scored_BT[row, t + 1].item() == pytest.approx(logprob.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("family", "transform"),
    [
        ("qwen3", HeadTransform()),
        ("gemma2", HeadTransform(1.0, 2.5)),
        ("cohere", HeadTransform(0.0625)),
        ("granite", HeadTransform(0.125)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_probe_finds_what_follows_the_head(tiny: Any, family: str, transform: HeadTransform, dtype: str) -> None:
    model = tiny.model(family, dtype=dtype)
    probed = probe_head(model)
    assert not isinstance(probed, str)
    assert probed[2] == transform
    assert model.training


def _shifted_logits(model: Any) -> str:
    """The model adds something to its logits that no config names."""
    forward = model.forward

    def shifted(*args: Any, logits_to_keep: Any = 0, **kwargs: Any) -> Any:
        output = forward(*args, logits_to_keep=logits_to_keep, **kwargs)
        output.logits = output.logits + torch.arange(output.logits.shape[-1])
        return output

    model.forward = shifted
    return "other than a scale and a soft cap"


def _wrapped_head(model: Any) -> str:
    class Scaled(torch.nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return 3.0 * super().forward(hidden)

    model.lm_head.__class__ = Scaled
    return "Scaled, not a plain linear layer"


def _no_positions_to_keep(model: Any) -> str:
    forward = model.forward
    model.forward = lambda input_ids, attention_mask, use_cache=False: forward(
        input_ids=input_ids, attention_mask=attention_mask, use_cache=use_cache
    )
    return _wrapped_head(model)


@pytest.mark.parametrize("strange", [_shifted_logits, _wrapped_head, _no_positions_to_keep])
def test_an_unknown_head_falls_back_to_the_models_own_logits(
    tiny: Any, strange: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny.model(dtype="float64")
    reason = strange(model)
    scorer = TokenScorer(model)
    assert scorer.fallback is not None
    assert reason in scorer.fallback
    assert reason in caplog.text
    value, gradient = _naive_and_scored(tiny, model, scorer, 0.9)
    assert value < 1e-12
    assert gradient < 1e-10


@pytest.mark.parametrize("masks", [b"", encode([[5], [1, 2]]), encode([[5]]), encode([[5], [2, 3], [7]])])
def test_masks_of_other_tokens_are_refused(masks: bytes) -> None:
    with pytest.raises(EngineError, match="aren't those of the 2 tokens that were sampled"):
        decode(masks, [5, 3])
