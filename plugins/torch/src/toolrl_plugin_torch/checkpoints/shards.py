"""Checkpoints of training that is spread over ranks, by torch.distributed.checkpoint.

    checkpoints/step-000010/trainer/shards/     every rank's part of weights and optimizer states, and where it belongs

All ranks write at once, each its own parts, into a folder beside the checkpoint, which moves into it before the
checkpoint is renamed into place. What is saved has the names of whole tensors, so any number of ranks can read it, one
process too; and the state of one process is cut up where ranks read that.
"""

from __future__ import annotations

import pickle
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, metadata
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from toolrl.errors import CheckpointError, first_line
from toolrl.loop.ranks import Ranks
from toolrl_plugin_torch.checkpoints.trainer_state import Stateful

FOLDER = Path("trainer") / "shards"
"""In a checkpoint."""
MODEL = "model"
"""In a folder of shards until the checkpoint is put together."""
_BESIDE = ".shards-"
_INDEX = ".metadata"
"""The place of each part; the first rank writes it last."""
_SLOW = 20.0
"""Seconds that a file may take to be seen on another host."""

_UNREADABLE = (OSError, EOFError, ValueError, TypeError, AttributeError, IndexError, pickle.UnpicklingError,
               dcp.api.CheckpointException)  # fmt: skip
"""Errors of reading shards; a damaged pickle raises any of them."""


def write_shards(
    directory: Path,
    step: int,
    states: Mapping[str, Stateful],
    ranks: Ranks,
    write_model: Callable[[Path, str], None] = lambda folder, what: None,
) -> Path:
    """Write all tensors of these states, such as the optimizers, which hold the trained weights too, into a folder in
    `directory`; then have `write_model` write into `MODEL` in it, at a point of the run with a name. All ranks
    together; its path. Raises CheckpointError where a rank can't write, RankError on the others."""
    folder = directory / f"{_BESIDE}{step:06d}"

    def make_room() -> None:
        for old in directory.glob(f"{_BESIDE}*"):
            shutil.rmtree(old, ignore_errors=True)
        folder.mkdir(parents=True)

    what = f"the checkpoint of step {step}"
    try:
        ranks.by_first(make_room, what)
        with _together(ranks) as options:
            dcp.save(_tensors(states), storage_writer=FileSystemWriter(folder), **options)
        write_model(folder / MODEL, what)
    except (OSError, dcp.api.CheckpointException) as error:
        if ranks.first:
            shutil.rmtree(folder, ignore_errors=True)
        raise CheckpointError(
            f"{what} can't be written: {first_line(error)}",
            where=str(directory),
            hint="Earlier checkpoints are untouched. Make room or set another run.dir, then go on with --resume.",
        ) from error
    blind = [rank for rank, sees in enumerate(ranks.gather(_appears(folder / _INDEX), what)) if not sees]
    if blind:
        raise CheckpointError(
            f"{what}: rank {blind[0]} does not share rank 0's checkpoint file system",
            where=str(directory),
            hint="Set run.dir to a folder that all hosts share.",
        )
    return folder


def read_shards(checkpoint: Path, states: Mapping[str, Stateful], ranks: Ranks) -> None:
    """Load what `write_shards` wrote with any number of ranks. Raises CheckpointError for other tensors."""
    tensors = _tensors(states)
    reader = _Reader(checkpoint / FOLDER)
    try:
        saved = {name: tuple(entry.size) for name, entry in reader.read_metadata().state_dict_metadata.items()}
        wanted = {name: tuple(value.shape) for name, value in tensors.items()}
        if saved != wanted:
            other = sorted(name for name in {*saved, *wanted} if saved.get(name) != wanted.get(name))
            raise CheckpointError(
                f"its tensors are those of another model: {', '.join(other[:4])} and {max(len(other) - 4, 0)} more "
                "differ",
                where=str(checkpoint),
                hint="Resume with the model and the algorithm that the run began with.",
            )
        with _together(ranks) as options:
            dcp.load(tensors, storage_reader=reader, **options)
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        AttributeError,
        pickle.UnpicklingError,
        dcp.api.CheckpointException,
    ) as error:
        raise CheckpointError(f"it can't be read: {first_line(error)}", where=str(checkpoint / FOLDER)) from error
    for state in states.values():
        state.write_back()


class _Reader(FileSystemReader):
    """Reads shards whose index may come from anybody: torch itself unpickles it, which runs the code in it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index. Raises UnpicklingError for one that holds anything else."""
        with Path(self.path, _INDEX).open("rb") as file:
            index = _IndexUnpickler(file).load()
        if not isinstance(index, Metadata) or not isinstance(index.storage_data, dict):
            raise pickle.UnpicklingError(f"{_INDEX} is not an index of shards")
        for part in index.storage_data.values():
            if Path(part.relative_path).name != part.relative_path:
                raise pickle.UnpicklingError(f"{_INDEX} names {part.relative_path!r}, which is outside of the folder")
        index.storage_meta = StorageMeta(load_id=self.load_id)
        return index


class _IndexUnpickler(pickle.Unpickler):
    _ALLOWED = frozenset(
        {(metadata.__name__, name) for name in (*metadata.__all__, "_MEM_FORMAT_ENCODING")}
        | {("torch.distributed.checkpoint.filesystem", "_StorageInfo"), ("torch", "Size")}
        | {("torch.serialization", "_get_layout"), ("pathlib", "PosixPath"), ("pathlib", "WindowsPath")}
        # pathlib is a package from Python 3.13 on.
        | {("pathlib._local", "PosixPath"), ("pathlib._local", "WindowsPath")}
    )

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{_INDEX} asks for {module}.{name}, which no index of shards holds")
        return super().find_class(module, name)


def _appears(file: Path) -> bool:
    end = time.monotonic() + _SLOW
    while not file.is_file():
        if time.monotonic() >= end:
            return False
        time.sleep(0.2)
    return True


def _tensors(states: Mapping[str, Stateful]) -> dict[str, torch.Tensor]:
    return {f"{name}/{key}": value for name, one in states.items() for key, value in one.tensors().items()}


@contextmanager
def _together(ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Gives what torch needs to know of the processes that read or write together."""
    group = getattr(ranks, "control", None)
    with warnings.catch_warnings():
        # torch warns where it works without a process group, which is intended.
        warnings.simplefilter("ignore", UserWarning)
        yield {"process_group": group, "no_dist": group is None}
