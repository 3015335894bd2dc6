"""What toolrl asks of vLLM on GPUs, by the config that vLLM's CUDA build makes of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from help_cuda import EXTERNAL, IN_PROCESS, PROCESSES, save_model, start
from vllm.sampling_params import RequestOutputKind

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext
from toolrl.types import Sampling
from toolrl_plugin_vllm import build
from toolrl_plugin_vllm.engine import VllmEngine, _parameters
from toolrl_plugin_vllm.options import VllmEngineOptions
from toolrl_plugin_vllm.requests import sampling_arguments


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    return folder


def rank(index: int) -> dict[str, Any]:
    return {"device": f"cuda:{index}", "joins": True}


STARTS: list[tuple[str, dict[str, Any], dict[str, Any], tuple[str, float, list[int] | None]]] = [
    ("one GPU", {}, {}, (IN_PROCESS, 0.4, None)),
    ("one of eight", {}, {"device": "cuda:3"}, (IN_PROCESS, 0.4, [3])),
    ("its own GPU", {"devices": [1]}, {}, (IN_PROCESS, 0.9, [1])),
    ("two of its own", {"devices": [1, 2]}, {}, (PROCESSES, 0.9, [1, 2])),
    ("the trainer's and another", {"tensor_parallel": 2}, {}, (PROCESSES, 0.4, None)),
    ("apart", {"separate_process": True}, {"device": "cuda:1"}, (PROCESSES, 0.4, [1])),
    ("a share that was given", {"memory_fraction": 0.7}, {}, (IN_PROCESS, 0.7, None)),
    *((f"rank {index}", {}, rank(index), (EXTERNAL, 0.4, None)) for index in (0, 1, 3, 7)),
    ("a rank, apart", {"separate_process": True}, rank(1), (PROCESSES, 0.4, [1])),
    ("a rank alone on its host", {"devices": [1]}, rank(0), (EXTERNAL, 0.9, [1])),
    ("a quarter lent", {}, {"gpus": 0.25}, (IN_PROCESS, 0.2, None)),
    ("half lent", {}, {"gpus": 0.5}, (IN_PROCESS, 0.4, None)),
    ("one lent", {}, {"gpus": 1.0}, (IN_PROCESS, 0.9, None)),
    ("two lent", {"tensor_parallel": 2}, {"gpus": 2.0}, (PROCESSES, 0.9, None)),
    ("eight lent", {"tensor_parallel": 8}, {"gpus": 8.0}, (PROCESSES, 0.9, None)),
    ("sleep", {"sleep_level": 2}, {}, (IN_PROCESS, 0.4, None)),
    ("a rank that sleeps", {"sleep_level": 2}, rank(1), (EXTERNAL, 0.4, None)),
    ("fp8", {"quantization": "fp8"}, {}, (IN_PROCESS, 0.4, None)),
    ("deterministic", {}, {"deterministic": True}, (IN_PROCESS, 0.4, None)),
]


@pytest.mark.parametrize(("options", "place", "wanted"), [it[1:] for it in STARTS], ids=[it[0] for it in STARTS])
def test_vllm_makes_the_config_that_is_meant(
    model: Path, options: dict[str, Any], place: dict[str, Any], wanted: tuple[str, float, list[int] | None]
) -> None:
    config, executor = start(model, options, **place)
    parallel = config.parallel_config
    found = executor, config.cache_config.gpu_memory_utilization, parallel.assigned_physical_gpu_ids
    assert found == wanted
    assert parallel.tensor_parallel_size == VllmEngineOptions(**options).parts
    assert config.scheduler_config.async_scheduling == (not place.get("deterministic"))
    assert config.model_config.enable_sleep_mode == bool(options.get("sleep_level"))
    assert config.model_config.quantization == options.get("quantization")
    assert config.model_config.dtype == torch.bfloat16
    assert not config.use_v2_model_runner, "its sampler isn't the one that is replaced"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("options", [{}, {"tensor_parallel": 2}, {"quantization": "fp8"}])
def test_the_head_computes_in_float32_as_the_trainers_does(model: Path, options: dict[str, Any], dtype: str) -> None:
    assert start(model, options, dtype=f"torch.{dtype}")[0].model_config.head_dtype == torch.float32


@pytest.mark.parametrize(
    ("given", "wanted"), [({"rope_theta": 5.0}, torch.float32), ({"head_dtype": "model"}, torch.float16)]
)
def test_overrides_of_the_models_config_leave_the_head_alone_unless_they_name_it(
    model: Path, given: dict[str, Any], wanted: torch.dtype
) -> None:
    config, _ = start(model, {"engine_args": {"hf_overrides": given}}, dtype="torch.float16")
    assert config.model_config.head_dtype == wanted
    assert all(getattr(config.model_config.hf_config, name) == value for name, value in given.items())


def test_only_the_finished_output_of_a_request_is_made() -> None:
    given = sampling_arguments(Sampling(64, temperature=1.0, stop_token_ids=(5,)), None)
    assert _parameters(given).output_kind == RequestOutputKind.FINAL_ONLY


def test_two_starts_share_what_vllm_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hashes = []

    def build_config(options: Any, context: Any, *, model: str, known_ids: Any) -> Any:
        hashes.append(start(Path(model))[0].compute_hash())
        raise ConfigError("that was all")

    monkeypatch.setattr(build, "build", build_config)
    weights: Any = SimpleNamespace(save_config=save_model, version=0)
    for _ in range(2):
        with pytest.raises(ConfigError, match="that was all"):
            VllmEngine(None, BuildContext("vllm", weights=weights))._build()
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    ("options", "ranks", "refused"),
    [
        ({"tensor_parallel": 2}, "2", True),
        ({"devices": [0, 1]}, "2", True),
        ({"devices": [0]}, "8", True),  # rank 3's trainer isn't there
        ({"devices": [3]}, "8", False),
        ({"tensor_parallel": 1}, "2", False),
        ({"separate_process": True}, "2", False),
        ({"tensor_parallel": 2}, "1", False),
        ({}, "2", False),
    ],
)
def test_ranks_of_a_host_never_start_vllm_on_one_anothers_gpus(
    model: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], ranks: str, refused: bool
) -> None:
    class StartedError(Exception):
        pass

    def start_it(*given: Any) -> Any:
        raise StartedError

    monkeypatch.setattr(build, "_engine", start_it)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    context = BuildContext("vllm", device="cuda:3", dtype=torch.bfloat16)
    with pytest.raises(ConfigError if refused else StartedError, match=f"{ranks} trainer ranks" if refused else None):
        build.build(VllmEngineOptions(**options), context, model=str(model), known_ids=None)
