"""`toolrl doctor vllm`: is vLLM there, does it fit, and does it start to import?"""

from __future__ import annotations

import subprocess
import sys

from toolrl.errors import ConfigError, EngineError
from toolrl_plugin_vllm import packages

PATIENCE = 300.0
"""Seconds that the import may take."""

_IMPORT = """
import vllm
import torch
import toolrl_plugin_vllm.extension
from vllm.platforms import current_platform
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine
print("toolrl:", type(current_platform).__name__, torch.__version__, torch.cuda.is_available())
"""


def check() -> str:
    """What is installed and that it can be imported here. Raises ConfigError, EngineError; ModuleNotFoundError without
    vLLM, which `toolrl doctor` reports as a missing optional package."""
    found = _the_one(packages.installed())
    platform = _import()
    return f"{found.name} {found.version}, {platform}"


def _the_one(found: list[packages.Installed]) -> packages.Installed:
    if not found:
        # So that doctor calls it unavailable, and not failed: the engine is optional.
        raise ConfigError("vLLM isn't installed", hint=packages.INSTALL) from ModuleNotFoundError(
            "No module named 'vllm'", name="vllm"
        )
    if len(found) > 1:
        both = " and ".join(f"{it.name} {it.version}" for it in found)
        raise ConfigError(
            f"{both} are installed, and each has overwritten files of the other",
            hint=f"pip uninstall -y {' '.join(it.name for it in found)}, then install one of them.",
        )
    if not found[0].known:
        oldest, newest = (".".join(map(str, version)) for version in (packages.OLDEST, packages.NEWEST))
        raise ConfigError(
            f"{found[0].name} {found[0].version} is installed; the engine is made for {oldest} to {newest}",
            hint=packages.INSTALL,
        )
    return found[0]


def _import() -> str:
    """Import vLLM in a process of its own: wrongly paired libraries may take the process down. Raises EngineError."""
    packages.prepare_environment()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"importing vLLM took more than {PATIENCE:g} seconds") from None
    said = [line for line in done.stdout.splitlines() if line.startswith("toolrl: ")]
    if done.returncode or not said:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        hint = None
        if "torchvision" in done.stderr or "torchaudio" in done.stderr:
            hint = "pip uninstall -y torchvision torchaudio torchcodec: they don't fit this torch, and text needs none."
        raise EngineError(f"vLLM can't be imported (exit status {done.returncode}): {last[:300]}", hint=hint)
    platform, torch, cuda = said[-1].removeprefix("toolrl: ").split(" ", 2)
    return f"torch {torch}, {platform}, {'a' if cuda == 'True' else 'no'} CUDA device"
