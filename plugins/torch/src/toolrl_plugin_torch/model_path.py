"""Checks `model.path` in a second, without importing torch.

A run's folder (`RUN`, `RUN:best`, `RUN:30`), a folder in Hugging Face layout, or `owner/name` of a model hub.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from toolrl.errors import CheckpointError, DataError
from toolrl.loop.checkpoints import find_checkpoint, list_checkpoints
from toolrl.runs.folder import run_and_checkpoint
from toolrl_common.hub import check_on_hub

_CONFIGS = ("config.json", "adapter_config.json")
_TOKENIZERS = ("tokenizer", "vocab", "spiece", "sentencepiece", "merges")
"""How names of a tokenizer's files begin."""


def missing_model(path: str) -> str | None:
    """The problem of a model that is missing or can't be read; None where a run can load it."""
    if (found := run_and_checkpoint(path)) is not None:
        if not list_checkpoints(found[0] / "checkpoints"):
            return f"model.path: the run {str(found[0])!r} has no checkpoint yet"
        try:
            find_checkpoint(found[0] / "checkpoints", found[1])
        except CheckpointError as error:
            return f"model.path: {path!r}: {error.message}. {error.hint}"
        return None
    return broken_model(path) or missing_on_hub(path)


def broken_model(source: str) -> str | None:
    """The problem of a folder that is missing or holds no whole model; None for a hub's name too."""
    problem = _problem(source)
    return problem and f"model.path: {problem}"


def _problem(source: str) -> str | None:
    if _is_missing_folder(source):
        return f"there is no folder {source!r} here; relative paths start at {str(Path.cwd())!r}"
    if not Path(source).is_dir():
        return None
    try:
        fault = next(_faults(Path(source)), None)
    except OSError as error:
        fault = f"it can't be read: {error.strerror or error}"
    return fault and f"{source!r} is no whole model: {fault}"


def _is_missing_folder(source: str) -> bool:
    """Whether a source can only mean a folder, and there is none: it is no `owner/name`, or `owner` is a folder."""
    path = Path(source)
    if path.is_dir():
        return False
    like_a_path = path.is_absolute() or source.startswith((".", "~")) or len(path.parts) != 2
    return like_a_path or Path(path.parts[0]).is_dir()


def _faults(folder: Path) -> Iterator[str]:
    """What a model's folder lacks: a config, weights, a tokenizer. Raises OSError."""
    inside = sorted(path.name for path in folder.iterdir())
    holds = f"; it holds: {', '.join(inside[:12]) or 'nothing'}"
    config = next((folder / name for name in _CONFIGS if name in inside), None)
    if config is None:
        yield f"it has no config.json{holds}"
        return
    try:
        base = json.loads(config.read_bytes()).get("base_model_name_or_path")
    except (ValueError, AttributeError, RecursionError) as error:
        yield f"{config.name} is no JSON object: {error}"
        return
    if not any(name.endswith((".safetensors", ".bin")) for name in inside):
        yield f"it has no weights, model.safetensors{holds}"
    if config.name == "config.json" and not any(name.startswith(_TOKENIZERS) for name in inside):
        yield f"it has no tokenizer{holds}"
    if config.name == "adapter_config.json":
        yield from _broken_base(str(base))


def _broken_base(base: str) -> Iterator[str]:
    """The problem of the model that an adapter was made for."""
    if (Path(base) / "adapter_config.json").exists():
        yield f"its base_model_name_or_path is an adapter itself, {base!r}: merge that one first, by `toolrl export`"
    elif (problem := _problem(base)) is not None:
        yield problem
    elif (problem := missing_on_hub(base)) is not None:
        yield problem.removeprefix("model.path: ")


def missing_on_hub(source: str) -> str | None:
    """The problem of a name that the Hub doesn't have, or of the Hub; None for a folder's path too."""
    if Path(source).is_dir() or _is_missing_folder(source):
        return None
    try:
        check_on_hub(source, "model")
    except DataError as error:
        return f"model.path: {error.message}. {error.hint}"
    return None
