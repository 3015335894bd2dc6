"""Devices that a process has, or that Ray lends a worker, against those that the engine is to take."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from toolrl.errors import ConfigError
from toolrl_plugin_vllm import build, devices
from toolrl_plugin_vllm.options import VllmEngineOptions


@pytest.mark.parametrize(
    ("options", "seen", "gpus"),
    [
        ({}, 1, None),
        ({}, 1, 1.0),
        ({}, 1, 0.5),
        ({"tensor_parallel": 4}, 4, 4.0),
        ({"devices": [1]}, 2, 2.0),
        ({"devices": [1, 2]}, 3, None),
        ({"memory_fraction": 0.5}, 1, 0.5),
        ({"memory_fraction": 0.9}, 1, 1.0),
    ],
)
def test_devices_that_are_there_are_taken(
    options: dict[str, Any], seen: int, gpus: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    devices.check(VllmEngineOptions(**options), seen, gpus)
    assert not caplog.records


@pytest.mark.parametrize(
    ("options", "seen", "gpus", "message", "hint"),
    [
        ({}, 0, None, "computes on CUDA devices, and torch sees 0", "CUDA_VISIBLE_DEVICES"),
        ({}, 0, 0.0, r"and this worker was lent 0 \(cluster.worker_gpus\)", "Set cluster.worker_gpus to 1."),
        ({"tensor_parallel": 2}, 1, 1.0, "tensor_parallel is 2, and this worker was lent 1", "worker_gpus to 2."),
        ({"tensor_parallel": 2}, 1, None, "tensor_parallel is 2, and torch sees 1", "Take at most 1."),
        (
            {"devices": [1]},
            1,
            1.0,
            r"devices is \[1\], and this worker was lent 1 .*number 0 alone",
            "leave devices out",
        ),
        ({"devices": [2, 3]}, 2, None, "torch sees 2: there are numbers 0 to 1", "CUDA_VISIBLE_DEVICES"),
        ({"memory_fraction": 0.6}, 1, 0.5, "worker_gpus 0.5 puts 2 workers on one GPU", "less than 0.5"),
    ],
)
def test_devices_that_are_not_there_are_refused(
    options: dict[str, Any], seen: int, gpus: float | None, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        devices.check(VllmEngineOptions(**options), seen, gpus)
    assert hint in (caught.value.hint or "")
    assert (caught.value.where or "").startswith("engine")


def test_lent_devices_that_nothing_uses_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    devices.check(VllmEngineOptions(), 4, 4.0)
    assert "lends each worker 4 GPUs, and its engine uses number 0; the others are idle" in caplog.text


@pytest.mark.parametrize(("gpus", "fraction"), [(None, 0.4), (1.0, 0.4), (0.5, 0.4), (0.25, 0.2), (0.3, 0.8 / 3)])
def test_workers_that_share_a_gpu_share_its_memory(gpus: float | None, fraction: float) -> None:
    told = build.arguments(VllmEngineOptions(), model="m", dtype=None, cpu=False, device="cuda:0", gpus=gpus)
    assert told["gpu_memory_utilization"] == pytest.approx(fraction)
    assert devices.sharers(gpus) * fraction <= 0.8 + 1e-9


def test_what_ray_lent_is_known_in_a_worker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def ray(actor: str | None, started: bool = True) -> Any:
        context = SimpleNamespace(get_actor_id=lambda: actor, get_assigned_resources=lambda: {"CPU": 1.0, "GPU": 0.5})
        return SimpleNamespace(is_initialized=lambda: started, get_runtime_context=lambda: context)

    for module, wanted in ((None, None), (ray("a", started=False), None), (ray(None), None), (ray("a"), 0.5)):
        monkeypatch.setitem(sys.modules, "ray", module)
        assert devices.lent() == wanted
