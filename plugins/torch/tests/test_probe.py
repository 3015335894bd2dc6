"""Verifying a copy of a model: digests see every change, log-probabilities are compared within the model's noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from toolrl.errors import EngineError
from toolrl_plugin_torch import probe
from toolrl_plugin_torch.probe import check_logprobs, digest, digests, measure, module_logprobs, probe_ids


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (300, 7), (2**17 + 5,)])
def test_a_digest_sees_every_change_of_a_value_and_of_its_place(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = digests([("it", tensor)])
    assert digests([("it", tensor.clone())]) == before
    flat = tensor.view(-1)
    for place in {0, len(flat) // 2, len(flat) - 1} if len(flat) else ():
        flat[place] = 1 - flat[place].to(torch.int64)
        assert digests([("it", tensor)]) != before
        flat[place] = 1 - flat[place].to(torch.int64)
    if len(flat) > 2:
        flat[:2] = torch.tensor([0, 1])
        other = digests([("it", tensor)])
        flat[:2] = torch.tensor([1, 0])
        assert digests([("it", tensor)]) != other


@pytest.mark.parametrize("start", range(0, 2**18 + 5, 2**15 + 1))
def test_changes_of_several_words_do_not_cancel_each_other(start: int) -> None:
    tensor = torch.zeros(2**18 + 10, dtype=torch.int32)
    before = digests([("it", tensor)])
    tensor[start : start + 5] = torch.tensor([1, 0, -2, 0, 1])
    assert digests([("it", tensor)]) != before


def test_the_probe_is_the_same_at_every_call() -> None:
    assert probe_ids(None, 50) == probe_ids(None, 50)
    assert len(probe_ids(None, 50)) == 128
    assert len(probe_ids(None, 50, 10)) == 10
    assert set(probe_ids(None, 3)) == {0, 1, 2}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("wrong", [math.nan, -math.inf])
def test_no_number_is_no_agreement(tiny: Any, dtype: str, wrong: float) -> None:
    model, ids = tiny.model(dtype=dtype), probe_ids(None, tiny.vocabulary, 32)
    found = module_logprobs(model, ids).tolist()
    probe, asked = measure(model, ids, model.dtype), {"owner": "it", "hint": ""}
    assert (probe.rounding is None) == (dtype == "float32")
    assert check_logprobs(found, probe, **asked) == 0.0
    assert model.training, "it is left in the mode it was in"
    found[3] = wrong
    with pytest.raises(EngineError, match=rf"is inf, more than .*\(token 3: {wrong}"):
        check_logprobs(found, probe, **asked)
    assert check_logprobs([it - 0.005 for it in found[:3]], probe, **asked, tolerance=0.1) <= 0.00501


@pytest.mark.parametrize("noise", [0.0, math.nan])
def test_what_a_model_may_round_is_bounded(tiny: Any, monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
    """Also where its other attention gives no numbers."""
    model, ids = tiny.model(dtype="bfloat16"), probe_ids(None, tiny.vocabulary, 32)
    attention, right = model.config._attn_implementation, model.forward

    def forward(**inputs: Any) -> Any:
        output = right(**inputs)
        if model.config._attn_implementation != attention:
            output.logits += noise
        return output

    monkeypatch.setattr(model, "forward", forward)
    found = [it - 0.5 for it in module_logprobs(model, ids).tolist()]
    with pytest.raises(EngineError, match="mean of the smaller four fifths of differences .* is 0.5, more than 0."):
        check_logprobs(found, measure(model, ids, model.dtype), owner="it", hint="")
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_a_16_bit_model_are_float32(tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=500, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, initializer_range=0.3, tie_word_embeddings=tied,
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    ids = list(range(40))
    found = module_logprobs(model, ids)
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([ids]), use_cache=False)[0][0, :-1]
        wanted = (hidden.double() @ model.lm_head.weight.double().t()).log_softmax(-1)
    assert torch.allclose(found.double(), wanted.gather(1, torch.tensor(ids[1:])[:, None])[:, 0], atol=1e-4)
    assert model(input_ids=torch.tensor([ids])).logits.dtype == torch.bfloat16, "the model is as it was"


class _Kernels(TorchDispatchMode):
    """Counts operators, of which each is a kernel on a GPU."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def test_the_digests_of_a_model_of_8b_take_few_kernels() -> None:
    shapes = {"embed": (151936, 4096), "head": (151936, 4096)}
    for layer in range(36):
        shapes |= {f"{layer}.{name}": (4096, 4096) for name in "qo"}
        shapes |= {f"{layer}.{name}": (1024, 4096) for name in "kv"}
        shapes |= {f"{layer}.{name}": (12288, 4096) for name in ("gate", "up", "down")}
        shapes |= {f"{layer}.{name}": (4096,) for name in ("norm1", "norm2")}
    tensors = {name: torch.empty(shape, dtype=torch.bfloat16, device="meta") for name, shape in shapes.items()}
    digest(tensors["0.q"])  # The factors are made once.
    with _Kernels() as kernels:
        for tensor in tensors.values():
            digest(tensor)
    assert kernels.count < 2000


@pytest.mark.parametrize("words", [0, 1, 2**18 - 1, 2**18, 2**18 + 1, 3 * 2**18, 200 * 2**18 + 5])
def test_a_digest_is_the_same_however_many_blocks_are_summed_at_once(words: int) -> None:
    tensor = torch.randint(-100, 100, (words,), dtype=torch.int8)
    factors = probe._factors(tensor.device)
    blocks = [int((block * factors[: len(block)]).sum()) for block in tensor.split(2**18)]
    wanted = (torch.tensor(blocks) * factors[len(factors) - len(blocks) :]).sum()
    assert digest(tensor) == wanted
