"""A checkpoint as a plain model folder: an adapter merged in or alone, a bfloat16 model in bfloat16 again, without what
only a run needs.

The folder is written beside its place and renamed as the last act, so there is a whole one or none.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from toolrl.errors import CheckpointError, DataError, ToolrlError
from toolrl.loop.checkpoints import MANIFEST
from toolrl_plugin_torch.adapters.lora import CONFIG_FILE, adapter_base, read_tensors
from toolrl_plugin_torch.model_path import broken_model
from toolrl_plugin_torch.options import ModelConfig
from toolrl_plugin_torch.policy import SOURCE_DTYPE, load_policy

_OF_A_RUN = ("trainer", MANIFEST)


def export_model(source: str, folder: Path, *, trust_remote_code: bool = False, adapter_of: str | None = None) -> None:
    """Write the model of a checkpoint, an adapter's or a whole one's, to a new or empty folder. With `adapter_of` the
    adapter is written instead, as one of that model. `trust_remote_code` as in `model`.

    Raises DataError for a source that is no folder with a whole model, ConfigError where an adapter's model can't be
    loaded, CheckpointError where the model can't be written.
    """
    path = Path(source)
    if (problem := broken_model(source)) is not None:
        raise DataError(problem, hint="Give a run's folder, one of its checkpoints, or an adapter.")
    folder = folder.absolute()
    writing = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(writing, ignore_errors=True)
    try:
        writing.parent.mkdir(parents=True, exist_ok=True)
        if adapter_of is None:
            _write(path, writing, trust_remote_code)
        else:
            _copy_adapter(path, writing, adapter_of)
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


def _write(path: Path, folder: Path, trusted: bool) -> None:
    """Copy the model; where an adapter is merged or weights are rounded, load it on the CPU as it was trained."""
    base = adapter_base(path)
    if base is None and SOURCE_DTYPE not in json.loads((path / "config.json").read_bytes()):
        shutil.copytree(path, folder, ignore=shutil.ignore_patterns(*_OF_A_RUN))
        return
    folder.mkdir()
    tensors = read_tensors(path).values() if base is not None else ()
    low = {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    config = ModelConfig(path=str(path), dtype="bfloat16" if low else "float32", trust_remote_code=trusted)
    policy = load_policy(config, str(path), torch.device("cpu"))
    if vars(policy.model.config).pop(SOURCE_DTYPE, None) is not None:
        policy.model.to(torch.bfloat16)
    policy.save_whole(folder)


def _copy_adapter(path: Path, folder: Path, base: str) -> None:
    shutil.copytree(path, folder, ignore=shutil.ignore_patterns(*_OF_A_RUN, "adapter_base.json"))
    file = folder / CONFIG_FILE
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "base_model_name_or_path": base}, indent=2) + "\n")
