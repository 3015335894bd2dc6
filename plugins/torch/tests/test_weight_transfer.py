"""Weights in buckets: what is sent arrives as it was, once, and a copy that differs is found out."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch

from toolrl.cluster.messages import Bucket, Handoff
from toolrl.cluster.weights import FileCourier, StoreCourier, buckets, receive, verify
from toolrl.errors import EngineError
from toolrl_plugin_torch.probe import check_logprobs, digests, module_logprobs, probe_ids


class Weights:
    def __init__(self, model: Any, version: int = 1) -> None:
        self.model = model
        self.version = version

    def module(self) -> Any:
        return self.model

    def state_dict(self) -> Any:
        return self.model.state_dict()

    def path(self) -> Path:
        raise NotImplementedError


def courier(size: int = 2**20) -> StoreCourier:
    return StoreCourier(bytes, size)


def sent(tiny: Any, model: Any, size: int = 2**20, version: int = 1) -> Handoff:
    return asyncio.run(courier(size).publish(Weights(model, version), version))


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
@pytest.mark.parametrize("size", [1, 20_000, 2**30])
def test_a_copy_has_the_weights(tiny: Any, family: str, size: int) -> None:
    model, copy = tiny.model(family, seed=0), tiny.model(family, seed=1)
    handoff = sent(tiny, model, size)
    with pytest.raises(EngineError, match="after a transfer of version 1 a rollout worker doesn't have the trainer's"):
        verify(handoff, copy)
    asyncio.run(receive(handoff, copy))
    verify(handoff, copy)
    for name, tensor in model.state_dict().items():
        assert torch.equal(copy.state_dict()[name], tensor), name


def test_sixteen_bit_weights_travel_as_they_are(tiny: Any) -> None:
    model, copy = tiny.model(dtype="bfloat16", seed=0), tiny.model(dtype="bfloat16", seed=1)
    handoff = sent(tiny, model)
    asyncio.run(receive(handoff, copy))
    verify(handoff, copy)


def test_tied_tensors_and_frozen_ones_do_not_travel_twice_or_at_all(tiny: Any) -> None:
    model, copy = tiny.model("qwen3", seed=0), tiny.model("qwen3", seed=0)
    whole = {name for bucket in buckets(model.state_dict(), set(), 2**30) for name in bucket}
    assert whole == model.state_dict().keys() - {"lm_head.weight"}
    for one in (model, copy):
        for name, parameter in one.named_parameters():
            parameter.requires_grad_("norm" in name)
    with torch.no_grad():
        model.model.norm.weight.add_(0.5)
    handoff = sent(tiny, model)
    assert sum(bucket.size for bucket in handoff.buckets) < 10_000
    asyncio.run(receive(handoff, copy))
    verify(handoff, copy)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("trained", [True, False])
def test_a_tensor_that_stays_as_it_was_is_found_out(tiny: Any, dtype: str, *, trained: bool) -> None:
    """One that no update changes, too, of which nothing travels."""
    model, copy = (tiny.model("llama", dtype=dtype, seed=0).requires_grad_(trained) for _ in range(2))
    for name, tensor in model.state_dict().items():
        before = tensor.clone()
        tensor.mul_(1.01)
        if torch.equal(tensor, before):
            tensor.view(-1)[0].add_(1)
        with pytest.raises(
            EngineError, match=rf"version 1 a rollout worker doesn't .*1 of \d+ tensors differ, '{name}'"
        ):
            verify(sent(tiny, model), copy)
        tensor.copy_(before)
    verify(sent(tiny, model), copy)


def test_weights_of_another_model_and_those_that_lack_some_are_refused(tiny: Any) -> None:
    handoff = sent(tiny, tiny.model("qwen3"))
    with pytest.raises(EngineError, match="the trainer sent .* the worker's model has no such tensor"):
        asyncio.run(receive(handoff, tiny.model("gpt2")))
    half = Handoff(1, sent(tiny, tiny.model("llama"), 1).buckets[1:])
    with pytest.raises(EngineError, match=r"the trainer's weights lack 1 tensors, 'model.embed_tokens.weight' among"):
        asyncio.run(receive(half, tiny.model("llama")))
    broken = Handoff(1, (Bucket(handoff.buckets[0].size, data=bytes(handoff.buckets[0].size)),))
    with pytest.raises(EngineError, match="the weights that arrived are none"):
        asyncio.run(receive(broken, tiny.model("qwen3")))
    torn = Handoff(1, (Bucket(handoff.buckets[0].size, data=handoff.buckets[0].data[:-5]),))
    with pytest.raises(EngineError, match=r"bytes of weights arrived where \d+ were sent"):
        asyncio.run(receive(torn, tiny.model("qwen3")))


def test_files_of_two_versions_are_kept_and_in_the_end_none(tiny: Any, tmp_path: Path) -> None:
    model, copy, folder = tiny.model(seed=0), tiny.model(seed=1), tmp_path / "weights"
    by_file = FileCourier(folder, 20_000)
    handoffs = []
    for version in range(4):
        with torch.no_grad():
            model.model.norm.weight.add_(0.1)
        handoffs.append(asyncio.run(by_file.publish(Weights(model, version), version)))
    assert sorted(path.name for path in folder.iterdir()) == ["version-2", "version-3"]
    asyncio.run(receive(handoffs[3], copy))
    verify(handoffs[3], copy)
    with pytest.raises(EngineError, match=r"version-0.*can't be read on a worker: No such file") as caught:
        asyncio.run(receive(handoffs[0], copy))
    assert caught.value.where == "cluster.weight_transfer"
    by_file.close()
    assert not folder.exists()


def test_a_file_of_other_bytes_is_found_out(tiny: Any, tmp_path: Path) -> None:
    model, copy = tiny.model(dtype="bfloat16", seed=0), tiny.model(dtype="bfloat16", seed=0)
    by_file = FileCourier(tmp_path / "weights")
    handoff = asyncio.run(by_file.publish(Weights(model), 1))
    verify(handoff, copy)
    file = Path(str(handoff.buckets[0].path))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    asyncio.run(receive(handoff, copy))
    with pytest.raises(EngineError, match=r"1 of \d+ tensors differ"):
        verify(handoff, copy)


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
    asked = {"exact": dtype == "float32", "who": "it", "hint": ""}
    assert check_logprobs(found, model, ids, **asked) == 0.0
    assert model.training, "it is left in the mode it was in"
    found[3] = wrong
    with pytest.raises(EngineError, match=rf"is inf, more than .*\(token 3: {wrong}"):
        check_logprobs(found, model, ids, **asked)
    assert check_logprobs([it - 0.005 for it in found[:3]], model, ids[:4], **asked, tolerance=0.1) <= 0.00501


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
        check_logprobs(found, model, ids, exact=False, who="it", hint="")
    assert model.config._attn_implementation == attention
