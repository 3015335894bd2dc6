"""Checks `model.path` in a second, without importing torch.

A run's folder (`RUN`, `RUN:best`, `RUN:30`), a folder in Hugging Face layout, or `owner/name` of a model hub.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from toolrl.errors import DataError
from toolrl.loop.checkpoints import list_checkpoints
from toolrl.runs.folder import run_and_checkpoint
from toolrl_common.hub import check_on_hub

_CONFIGS = ("config.json", "adapter_config.json")
_TOKENIZERS = ("tokenizer", "vocab", "spiece", "sentencepiece", "merges")
"""How names of a tokenizer's files begin."""


def missing_model(path: str) -> str | None:
    """The problem of a model that is missing or can't be read; None where a run can load it."""
    if (found := run_and_checkpoint(path)) is not None:
        return _missing_checkpoint(*found)
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


def _missing_checkpoint(run: Path, name: str) -> str | None:
    """The problem of a run without a checkpoint of this name: `last`, `best`, or a step's."""
    folder = run / "checkpoints"
    there = [path.name for path in list_checkpoints(folder)]
    step = name.removeprefix("step-")
    if not there and not (name == "best" and (folder / "best.json").is_file()):
        return f"model.path: the run {str(run)!r} has no checkpoint yet"
    if name == "best":
        found, what = (folder / "best.json").is_file(), "best checkpoint, which trainer.keep_best keeps"
    else:
        found = name == "last" or (step.isdecimal() and f"step-{int(step):06d}" in there)
        what = f"checkpoint {name!r}"
    return None if found else f"model.path: the run {str(run)!r} has no {what}; there are: {', '.join(there)}"


def _faults(folder: Path) -> Iterator[str]:
    """What a model's folder lacks: a config, whole weights, a tokenizer. Raises OSError."""
    inside = sorted(path.name for path in folder.iterdir())
    holds = f"; it holds: {', '.join(inside[:12]) or 'nothing'}"
    config = next((folder / name for name in _CONFIGS if name in inside), None)
    if config is None:
        yield f"it has no config.json{holds}"
        return
    yield from _not_an_object(config)
    yield from _broken_weights(folder, inside)
    if not any(name.endswith((".safetensors", ".bin")) for name in inside):
        yield f"it has no weights, model.safetensors{holds}"
    if config.name == _CONFIGS[1]:
        yield from _broken_base(json.loads(config.read_bytes()).get("base_model_name_or_path"))
    elif not any(name.startswith(_TOKENIZERS) for name in inside):
        yield f"it has no tokenizer{holds}"


def _broken_base(base: Any) -> Iterator[str]:
    """The problem of the model that an adapter was made for."""
    if not isinstance(base, str) or not base:
        yield "adapter_config.json doesn't say which model it was made for: write it into base_model_name_or_path"
    elif (Path(base) / _CONFIGS[1]).exists():
        yield f"its base_model_name_or_path is an adapter itself, {base!r}: merge that one first, by `toolrl export`"
    elif (problem := _problem(base)) is not None:
        yield problem
    elif (problem := missing_on_hub(base)) is not None:
        yield problem.removeprefix("model.path: ")


def _not_an_object(file: Path) -> Iterator[str]:
    try:
        if not isinstance(json.loads(file.read_bytes()), dict):
            yield f"{file.name} holds no JSON object"
    except (ValueError, RecursionError) as error:
        yield f"{file.name} is no JSON: {error}"


def _broken_weights(folder: Path, inside: Sequence[str]) -> Iterator[str]:
    """Which safetensors file of a folder is missing or cut off."""
    index = folder / "model.safetensors.index.json"
    if index.name in inside:
        yield from _not_an_object(index)
        shards = json.loads(index.read_bytes()).get("weight_map", {})
        lacking = sorted({str(name) for name in shards.values()} - set(inside)) if isinstance(shards, dict) else []
        if lacking:
            yield f"{index.name} names {lacking[0]}, which isn't there"
    if importlib.util.find_spec("safetensors") is None:
        return
    from safetensors import SafetensorError, safe_open

    for name in inside:
        if name.endswith(".safetensors"):
            (folder / name).open("rb").close()  # safetensors reports an unreadable file as missing
            try:
                safe_open(folder / name, framework="np")  # reads the header, and compares it with the file's size
            except (SafetensorError, OSError) as error:
                yield f"{name} is broken or cut off ({error}); copy or download it again"


def missing_on_hub(source: str) -> str | None:
    """The problem of a name that the Hub doesn't have, or of the Hub; None for a folder's path too."""
    if Path(source).is_dir() or _is_missing_folder(source):
        return None
    try:
        check_on_hub(source, "model")
    except DataError as error:
        return f"model.path: {error.message}. {error.hint}"
    return None
