"""A checkpoint as a plain model folder: an adapter merged in, what only a run needs left out.

The folder is written beside its place and renamed as the last act, so there is a whole one or none.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import torch

from toolrl.config.model import ModelConfig
from toolrl.errors import CheckpointError, DataError, ToolrlError
from toolrl.train.checkpoint import MANIFEST
from toolrl.train.lora import adapter_base, read_tensors
from toolrl.train.policy import load_policy

_OF_A_RUN = ("trainer", MANIFEST)


def export_model(source: str, folder: Path, *, trust_remote_code: bool = False) -> None:
    """Write the model of a checkpoint, an adapter's or a whole one's, to a new or empty folder. `trust_remote_code` as
    in `model`.

    Raises DataError for a source that is no folder with a model, ConfigError where an adapter's model can't be loaded,
    CheckpointError where its weights can't be read, or the model can't be written.
    """
    path = Path(source)
    base = adapter_base(path)
    if base is None and not (path / "config.json").is_file():
        raise DataError(
            "no model here", where=source, hint="Give a run's folder, one of its checkpoints, or an adapter."
        )
    folder = folder.absolute()
    writing = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(writing, ignore_errors=True)
    try:
        writing.parent.mkdir(parents=True, exist_ok=True)
        if base is None:
            shutil.copytree(path, writing, ignore=shutil.ignore_patterns(*_OF_A_RUN))
        else:
            writing.mkdir()
            _merge(path, writing, trusted=trust_remote_code)
        if folder.is_dir():
            folder.rmdir()
        writing.rename(folder)
    except ToolrlError:
        raise
    except Exception as error:
        text = f"the model can't be written: {type(error).__name__}: {error}"
        raise CheckpointError(text, where=str(folder), hint="Make room, or name another folder.") from error
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def _merge(source: Path, folder: Path, *, trusted: bool) -> None:
    """Merge on the CPU, in the precision that the adapter was trained in."""
    config = ModelConfig(path=str(source), dtype=_dtype(source), trust_remote_code=trusted)
    load_policy(config, str(source), torch.device("cpu")).save_whole(folder)


def _dtype(source: Path) -> Literal["float32", "bfloat16"]:
    """Of an adapter's tensors."""
    found = {tensor.dtype for tensor in read_tensors(source).values()}
    return "bfloat16" if found == {torch.bfloat16} else "float32"
