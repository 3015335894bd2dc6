"""Checks `model.path` in a second, without importing torch.

A run's folder (`RUN`, `RUN:best`, `RUN:30`), a folder in Hugging Face layout, or `owner/name` of a model hub.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from toolrl.loop.checkpoints import list_checkpoints
from toolrl.runs.folder import run_and_checkpoint

_log = logging.getLogger(__name__)
_HUB_SECONDS = 5.0
_CONFIGS = ("config.json", "adapter_config.json")
_TOKENIZERS = ("tokenizer", "vocab", "spiece", "sentencepiece", "merges")
"""How names of a tokenizer's files begin."""


def missing_model(path: str) -> str | None:
    """The problem of a model that is missing or can't be read; None where a run can load it."""
    if (found := run_and_checkpoint(path)) is not None:
        return _missing_checkpoint(*found)
    return broken_model(path) if Path(path).is_dir() or _is_missing_folder(path) else _missing_on_hub(path)


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


def _missing_on_hub(name: str) -> str | None:
    """One question to the hub. Where it can't be reached, what the cache holds is taken without asking again."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        huggingface_hub.HfApi().model_info(name, timeout=_HUB_SECONDS)
    except RepositoryNotFoundError:
        return f"model.path: there is no folder {name!r} here, and the hub has no such model, or none that you may read"
    except Exception as error:  # noqa: BLE001 - whatever the library's HTTP client raises
        cached = any(isinstance(huggingface_hub.try_to_load_from_cache(name, file), str) for file in _CONFIGS)
        reason = str(error).strip().splitlines() or [type(error).__name__]
        if not cached:
            return (
                f"model.path: {name!r} is no folder here and isn't in the hub's cache, and the hub can't be reached "
                f"({reason[0]}); where it can, run `hf download {name} --local-dir FOLDER`, and name that folder here"
            )
        if not huggingface_hub.is_offline_mode():
            _log.warning("model.path: the hub can't be asked (%s); %s comes from its cache", reason[0], name)
            # For this process and those it starts: every file would be asked for again, several times over.
            os.environ["HF_HUB_OFFLINE"] = "1"
            huggingface_hub.constants.HF_HUB_OFFLINE = True
    return None
