"""Contract tests against vLLM's CUDA build (`nox -s cuda_contract`). Without its source nothing here is collected."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
SOURCE = os.environ.get("TOOLRL_VLLM_SOURCE")
"""An unzipped wheel of vLLM."""
collect_ignore_glob = [] if SOURCE else ["test_*.py"]

if SOURCE:
    from toolrl_plugin_vllm import packages

    packages.prepare_environment()
    from pretend_cuda import pretend

    pretend(Path(SOURCE))


@pytest.fixture(autouse=True)
def no_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A machine with a GPU's driver, FlashInfer, and no CUDA toolkit."""
    from vllm.utils import flashinfer

    nothing = str(tmp_path_factory.mktemp("nothing"))
    for name in ("PATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, nothing)
    for value in vars(flashinfer).values():
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()
