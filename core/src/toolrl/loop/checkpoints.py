"""Checkpoints: Hugging Face folders that also hold what a run needs to go on exactly.

    checkpoints/step-000010/
        config.json, model.safetensors, tokenizer.json …   what `from_pretrained` takes; of a run with model.lora
        adapter_config.json, adapter_model.safetensors …   in the place of the first two
        trainer/state.json                                 step, version, data position, digests of config and data
        trainer/state.pt                                   optimizer, random generators, a critic
        trainer/buffer.jsonl                               finished groups that can still be trained on, if any
        trainer/shards/                                    optimizer and critic, where ranks wrote them (shards.py)
        manifest.json                                      size and SHA-256 of every other file

A checkpoint is written beside its place, put on the disk file by file, and renamed as the last act: whatever name
begins with `step-` was once complete. `verify` compares its files with the manifest, and names the first one that is
missing or was changed. Older checkpoints are deleted only after the new one stands, so a full disk costs no more than
the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolrl.errors import CheckpointError
from toolrl.loop.best import LINK, read_best

MANIFEST = "manifest.json"
FORMAT = 1
"""Of the manifest and the trainer's state; a newer one is refused."""

_BUFFER = "buffer.jsonl"
_NAME = re.compile(r"step-(\d{6,})\Z")
_UNFINISHED = ".writing-"


@dataclass(frozen=True)
class LoopState:
    """How far a run is: what it needs besides the trainer's part."""

    step: int
    """Complete steps."""
    version: int
    """Of the weights."""
    position: int
    """Tasks that were taken from the endless sequence of training tasks."""
    config_digest: str
    """Of the resolved config, so that a resume with another one can be remarked on."""
    pending: tuple[int, ...] = ()
    """Of the tasks that were taken, the positions of those that were not trained on yet."""
    buffer: tuple[Mapping[str, Any], ...] = ()
    """Finished groups that can still be trained on, as JSON values."""
    pass_rates: Mapping[int, float] = field(default_factory=dict)
    """Of tasks that are set aside, by their row in the data set."""
    rows: int | None = None
    """Of the data set; None where unknown."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Digests of the data sets, by their places in the config; those that are unknown are left out."""


def save_checkpoint(
    directory: Path,
    state: LoopState,
    write: Callable[[Path], None],
    *,
    keep: int = 2,
    spare: Collection[int] = (),
    size: Callable[[], int] = lambda: 0,
) -> Path:
    """Write `directory`/step-NNNNNN, then delete all but the last `keep` complete ones and those of the steps `spare`;
    returns its path.

    `write` writes the trainer's part into a folder; `size` says about how many bytes that takes. Raises CheckpointError
    where writing fails; the earlier checkpoints are as they were then.
    """
    final = directory / f"step-{state.step:06d}"
    unfinished = directory / f"{_UNFINISHED}{final.name}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob(f"{_UNFINISHED}*"):  # What a killed process left half-written.
            shutil.rmtree(path, ignore_errors=True)
        (unfinished / "trainer").mkdir(parents=True)
        write(unfinished)
        _write_state(unfinished / "trainer", state)
        _write_manifest(unfinished, state.step)
        replaced = directory / f"{_UNFINISHED}replaced-{final.name}"
        if final.exists():  # One that was torn, or of a future that the run went back from.
            final.rename(replaced)
        unfinished.rename(final)
        _sync(directory)
        shutil.rmtree(replaced, ignore_errors=True)
    except Exception as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint of step {state.step} can't be written: {type(error).__name__}: {error}",
            where=str(directory),
            hint=f"It takes about {size() / 2**20:,.1f} MiB. Earlier checkpoints are untouched: {_names(directory)}. "
            "Make room or set another run.dir, then go on with --resume.",
        ) from error
    prune(directory, keep, spare, last=state.step)
    return final


def list_checkpoints(directory: Path) -> list[Path]:
    """The checkpoints in a folder, complete or not, by step; none where there is no such folder."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if _NAME.match(path.name)), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def latest_checkpoint(directory: Path, notify: Callable[[str], None] | None = None) -> Path | None:
    """The last checkpoint whose files are all what was written; None where there is none at all.

    A torn one is passed over for the one before it, and `notify` (standard error by default) gets its name and the
    reason. Raises CheckpointError where all are torn; OSError for one that can't be read: it may be whole, and going
    back would lose its steps.
    """
    problems: list[CheckpointError] = []
    for path in reversed(list_checkpoints(directory)):
        try:
            verify(path)
        except CheckpointError as error:
            problems.append(error)
            continue
        for problem in problems:
            (notify or _print)(f"Checkpoint passed over, going back to {path.name}: {problem.where}: {problem.message}")
        return path
    if problems:
        raise CheckpointError(
            "every checkpoint is torn: " + "; ".join(f"{problem.where}: {problem.message}" for problem in problems),
            where=str(directory),
            hint="Bring a copy of one back, or delete this folder to start the run over.",
        )
    return None


def verify(path: Path, *, contents: bool = True) -> None:
    """Raise CheckpointError that names the first file of a checkpoint that is missing or isn't what was written.

    Without `contents` only presence and size are looked at.
    """
    for name, written in _read_manifest(path).items():
        _verify_file(path, name, *written, contents=contents)


def _verify_file(path: Path, name: str, written: int, digest: str, *, contents: bool) -> None:
    file = path / name
    if not file.is_file():
        raise CheckpointError(f"{name} is missing", where=str(path))
    size = file.stat().st_size
    if size != written:
        raise CheckpointError(f"{name} has {size} bytes, {written} were written", where=str(path))
    if contents and _digest(file) != digest:
        raise CheckpointError(f"{name} was changed: its SHA-256 isn't the manifest's", where=str(path))


def find_checkpoint(directory: Path, name: str) -> Path:
    """The checkpoint `last`, `best`, or that of a step: `30` or `step-000030`. Raises CheckpointError with the names
    of all, or with the fault of the one."""
    if name == "last":
        path = latest_checkpoint(directory)
        if path is not None:
            return path
    elif name == LINK and (best := read_best(directory)) is not None:
        path = directory / best.name
    else:
        step = name.removeprefix("step-")
        path = directory / f"step-{int(step):06d}" if step.isdecimal() else None
    if path is None or not path.is_dir():
        what = f"no checkpoint {name!r}" if name != LINK else "no best checkpoint; trainer.keep_best keeps one"
        raise CheckpointError(f"there is {what}", where=str(directory), hint=f"There are: {_names(directory)}.")
    verify(path)
    return path


def load_state(path: Path) -> LoopState:
    """How far the run was, by a checkpoint. Raises CheckpointError."""
    folder = path / "trainer"
    buffer = folder / _BUFFER
    try:
        facts = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        _check_format(facts["format"], path)
        return LoopState(
            step=facts["step"],
            version=facts["version"],
            position=facts["position"],
            config_digest=facts["config_digest"],
            rows=facts.get("rows"),
            data=facts.get("data", {}),
            pending=tuple(facts.get("pending", ())),
            pass_rates={int(row): rate for row, rate in facts.get("pass_rates", {}).items()},
            buffer=tuple(map(json.loads, buffer.read_text(encoding="utf-8").splitlines())) if buffer.exists() else (),
        )
    except CheckpointError:
        raise
    except Exception as error:
        raise unreadable_state(path, error) from error


def unreadable_state(path: Path, error: Exception) -> CheckpointError:
    """For a checkpoint whose state can't be read, or isn't one."""
    return CheckpointError(
        f"the trainer's state can't be read: {type(error).__name__}: {error}",
        where=str(path / "trainer"),
        hint="A run resumes from its own checkpoints only; to start from these weights, set model.path to it.",
    )


def _write_state(folder: Path, state: LoopState) -> None:
    facts = {
        "format": FORMAT,
        "step": state.step,
        "version": state.version,
        "position": state.position,
        "pending": list(state.pending),
        "pass_rates": dict(state.pass_rates),
        "config_digest": state.config_digest,
        "rows": state.rows,
        "data": dict(state.data),
    }
    (folder / "state.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if state.buffer:
        # A line each: other threads would stand still while a long text is made.
        with (folder / _BUFFER).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(group) + "\n" for group in state.buffer)


def _write_manifest(folder: Path, step: int) -> None:
    """Put every file on the disk, then the manifest that lists them."""
    files = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        _sync(file)
        files[file.relative_to(folder).as_posix()] = {"size": file.stat().st_size, "sha256": _digest(file)}
    manifest = folder / MANIFEST
    text = json.dumps({"format": FORMAT, "step": step, "files": files}, indent=2)
    manifest.write_text(text + "\n", encoding="utf-8")
    _sync(manifest)
    for inner in (path for path in folder.rglob("*") if path.is_dir()):
        _sync(inner)
    _sync(folder)


def _read_manifest(path: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of each file. Raises CheckpointError."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        _check_format(manifest["format"], path)
        files = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
        if not files or any("\0" in name or ".." in Path(name).parts or Path(name).is_absolute() for name in files):
            raise ValueError("it lists no files of this folder")
        return files
    except FileNotFoundError as error:
        raise CheckpointError(f"{MANIFEST} is missing", where=str(path)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IsADirectoryError) as error:
        raise CheckpointError(f"{MANIFEST} can't be read: {type(error).__name__}: {error}", where=str(path)) from error


def _check_format(found: int, path: Path) -> None:
    if found > FORMAT:
        text = f"it has format {found}, and this version of toolrl reads up to {FORMAT}"
        raise CheckpointError(text, where=str(path))


def prune(directory: Path, keep: int, spare: Collection[int] = (), *, last: int) -> None:
    """Delete what is older than the last `keep` complete checkpoints, but for the steps `spare`. Those after step
    `last`, where the run stands, are of a future that it went back from: they neither go nor count."""
    checkpoints = [path for path in list_checkpoints(directory) if step_of(path) <= last]
    complete = [path for path in checkpoints if is_whole(path)]
    if len(complete) > keep:
        for path in checkpoints[: checkpoints.index(complete[-keep])]:
            if step_of(path) in spare:
                continue
            # Out of the way first: a kill in the middle must not leave half a checkpoint under a checkpoint's name.
            with contextlib.suppress(OSError):
                path = path.rename(directory / f"{_UNFINISHED}deleted-{path.name}")
            shutil.rmtree(path, ignore_errors=True)


def is_whole(path: Path) -> bool:
    """Whether every file of a checkpoint is there and has its size."""
    try:
        verify(path, contents=False)
    except CheckpointError:
        return False
    return True


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Have the system put a file or a folder's names on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _names(directory: Path) -> str:
    return ", ".join(path.name for path in list_checkpoints(directory)) or "there are none"


def _print(line: str) -> None:
    print(line, file=sys.stderr)
