"""vLLM's CUDA build on a machine without a GPU: its own Python, imported from an unzipped wheel.

The wheel's compiled modules can't be loaded, so empty ones take their place, and the platform says that it is an H100.
Then vLLM makes its config and chooses executor, kernels and sampler as it would on that machine. No kernel runs.
Importing this changes the whole process.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMPILED = (
    "vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C", "vllm._moe_C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C",
)  # fmt: skip
GPUS, BYTES, MULTIPROCESSORS = 8, 80 << 30, 132
capability = (9, 0)
"""Of the pretended GPU; a test may set another."""


def pretend(source: Path) -> None:
    """Import vLLM from this folder. Call it before anything else imports vLLM."""
    assert "vllm" not in sys.modules, "vLLM was imported already"
    sys.path.insert(0, str(source))
    os.environ.update(VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
    for name in COMPILED:
        sys.modules[name] = types.ModuleType(name)
    sys.meta_path.insert(0, _FlashInfer())

    from vllm import platforms

    # Modules keep the platform that they see when they are imported, so that it is chosen before all else.
    platforms.resolve_current_platform_cls_qualname = lambda: "vllm.platforms.cuda.NonNvmlCudaPlatform"
    from vllm import _custom_ops, triton_utils
    from vllm.model_executor.models import registry
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    answers: dict[str, Callable[..., Any]] = {
        "get_device_capability": lambda cls, device_id=0: DeviceCapability(*capability),
        "get_device_name": lambda cls, device_id=0: "NVIDIA H100 80GB HBM3",
        "get_device_total_memory": lambda cls, device_id=0: BYTES,
        "num_compute_units": lambda cls, device_id=0: MULTIPROCESSORS,
        "device_count": lambda cls: GPUS,
        # Asked of compiled modules. 0.32 asks the first, and 0.33 the second.
        "is_sleep_mode_available": lambda cls: True,
        "is_cumem_allocator_available": lambda cls: True,
    }
    for name, answer in answers.items():
        setattr(NonNvmlCudaPlatform, name, classmethod(answer))
    assert isinstance(platforms.current_platform, NonNvmlCudaPlatform)
    # vLLM's own stand-in, as no GPU has a Triton driver here, makes configs that nothing can be asked of.
    triton_utils.triton.Config = lambda kwargs, **named: types.SimpleNamespace(kwargs=kwargs, **named)
    registry._run_in_subprocess = lambda function: function()  # The other process would see a machine without a GPU.
    for name in dir(_custom_ops):
        if "supports" in name:
            setattr(_custom_ops, name, lambda *args, **kwargs: True)


class _FlashInfer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """FlashInfer beside a GPU's driver alone: all of it can be imported, and nothing that it compiles can run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        known = name.partition(".")[0] == "flashinfer"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> Any:
        return _Anything(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


class _Anything(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
