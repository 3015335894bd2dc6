"""The run folder: everything that a run leaves. A kill at any moment leaves it readable.

    config.yaml      the resolved config, secrets masked
    plugins.json     versions of toolrl, of the plugins and of the libraries that matter
    metrics.jsonl    one line for each step's report
    episodes/        every episode, one compressed file for each step
    tokens.jsonl     the text of each token id that occurs in the episodes
    checkpoints/     the trainer's
    summary.json     kind, status, duration, first, last and best metrics
    report.html      all of it in one page
    run.log          warnings, the first traceback of each failing part, messages of engines; bounded
    .status.json     what the run does now, while it runs
    workers/         logs of rollout workers and trainer workers, where there are any

A folder belongs to one run. The process that writes it holds `.lock`; `open` reads a folder without it, also during
the run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from toolrl.errors import DataError, RunFolderLostError, ToolrlError
from toolrl.runs.card import card, describe, status
from toolrl.runs.contents import OWN_FOLDERS, being_written, delete_run, is_idle, is_leftover, unwritable
from toolrl.runs.episodes import EpisodeStore
from toolrl.runs.files import (
    FolderLock,
    json_line,
    naming,
    open_regular,
    read_config,
    read_json,
    read_lines,
    read_small,
    read_versions,
    write_atomic,
)
from toolrl.runs.metrics import MetricsLine, MetricsLog
from toolrl.runs.records import StoredEpisode
from toolrl.runs.metrics import summarise

_LIBRARIES = ("toolrl", "torch", "transformers", "tokenizers", "peft", "vllm", "ray")
_log = logging.getLogger(__name__)

KINDS = ("train", "sft", "eval", "ablate", "rollout")
"""Kinds of runs, after their commands. Only the first two have checkpoints."""
_SUMMARY_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("total_steps", "start_step", "steps", "episodes", "unsaved_episodes", "checkpoint"), (int,)),
    **dict.fromkeys(("name", "kind", "status", "started", "ended"), (str,)),
    "seconds": (float, int), "resumed_at": (list,), "error": (dict,), "metrics": (dict,),
}  # fmt: skip
"""Types of the summary's values, which readers of the folder rely on."""


class RunFolder:
    """A run's folder, for writing (`create`) or reading (`open`). Also the `RunInfo` that observers receive."""

    def __init__(self, directory: Path, config: Mapping[str, Any], total_steps: int) -> None:
        self.directory = directory
        self.name = directory.name
        self.config = config
        self.total_steps = total_steps
        self.kind: str | None = None
        """One of KINDS; None where the folder doesn't say."""
        self.start_step = 0
        """The step that the run starts from: 0, or the checkpoint's."""
        self.checkpoints = directory / "checkpoints"
        self.report_path = directory / "report.html"
        self.metrics = MetricsLog(directory / "metrics.jsonl")
        self.episode_store = EpisodeStore(directory / "episodes")
        self.replaces = False
        """Whether the folder still holds an older run, which `begin` deletes."""
        self._plugins: dict[str, str | None] = {}
        self._lock = FolderLock(directory / ".lock")
        self._known_tokens: set[int] | None = None

    # Opening.

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        total_steps: int,
        plugins: Mapping[str, str | None] | None = None,
        resume: bool | None = False,
        overwrite: bool = False,
        kind: str | None = None,
        lock: FolderLock | None = None,
    ) -> RunFolder:
        """Start writing a run at `path`. `config` is the resolved one, secrets already masked; `plugins` gives each
        plugin's version; `kind` is one of KINDS; `lock` is that of a reserved name.

        A folder that holds a run is rejected, unless that run ended before it reported anything, or is a training run
        of the same kind that ended without a checkpoint: the new run replaces it, and a warning says so.

        - `resume` continues the run (None: the command can't resume). Call `rewind` with the checkpoint's step, 0 where
          there is none. A config that differs replaces the old one, which is kept beside it.
        - `overwrite` has `begin` delete what the old run wrote, its checkpoints included. Until then the old run is
          whole, so a new run that can't start costs nothing.

        Raises ToolrlError.
        """
        directory = Path(path).absolute()
        is_run = is_run_folder(directory)
        idle = is_run and is_idle(directory)
        cls._refuse(directory, resume, overwrite, kind)
        folder = cls(directory, config, total_steps)
        folder.kind = kind
        if lock is not None:
            folder._lock = lock
        elif not _claim(directory, folder._lock):
            raise being_written(directory)
        folder._plugins = dict(plugins or {})
        folder.replaces = is_run and not resume
        if folder.replaces and not idle and not overwrite:
            _log.warning("replacing the run %r, which left no checkpoint: %s", folder.name, describe_run(directory))
        if not is_run or (idle and not resume):
            folder.begin()
        return folder

    @classmethod
    def check(cls, path: str | Path, *, resume: bool | None, overwrite: bool, kind: str | None = None) -> None:
        """Raises the ToolrlError that `create` would raise for this folder, and changes nothing."""
        directory = Path(path).absolute()
        cls._refuse(directory, resume, overwrite, kind)
        nearest = next(path for path in (directory, *directory.parents) if path.exists())
        for path in (nearest, *(directory / name for name in OWN_FOLDERS if (directory / name).exists())):
            if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
                raise unwritable(directory, f"{path} is no folder, or read-only for this user")
        if FolderLock(directory / ".lock").held_elsewhere():
            raise being_written(directory)

    @staticmethod
    def _refuse(directory: Path, resume: bool | None, overwrite: bool, kind: str | None) -> None:
        if directory.exists() and not directory.is_dir():
            raise ToolrlError("there is a file in the place of the run folder", where=str(directory))
        holds_work = is_run_folder(directory) and not is_idle(directory)
        if holds_work and resume:
            _check_kind(directory, kind)
        if holds_work and not (resume or overwrite or _replaceable(directory, kind)):
            raise ToolrlError(
                f"there is a run here already ({describe_run(directory)})",
                where=str(directory),
                hint=("" if resume is None else "Continue it by --resume. ")
                + "Start over by --overwrite, or give the new run another name by "
                "--set run.name=NAME.",
            )
        if not is_run_folder(directory) and directory.exists() and not all(map(is_leftover, directory.iterdir())):
            raise ToolrlError(
                "the folder isn't empty and holds no run",
                where=str(directory),
                hint="Give the run another name by --set run.name=NAME.",
            )

    def begin(self) -> None:
        """Delete the older run that `overwrite` replaces, if there is one, and make the folder this run's."""
        if self.replaces:
            delete_run(self.directory)
            self.replaces = False
        for path in (*self.directory.glob(".*.tmp"), *self.directory.glob("episodes/.*.tmp")):
            path.unlink()
        self._write_head(self._plugins)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Read a run. Raises DataError where there is none."""
        directory = Path(path).absolute()
        if not is_run_folder(directory):
            raise DataError("no run here", where=str(directory), hint="A run folder holds config.yaml.")
        folder = cls(directory, read_config(directory / "config.yaml"), 0)
        summary = folder.summary()
        folder.total_steps = summary.get("total_steps", 0)
        folder.start_step = summary.get("start_step", 0)
        folder.kind = summary.get("kind")
        return folder

    def _write_head(self, plugins: Mapping[str, str | None]) -> None:
        config_path = self.directory / "config.yaml"
        text = config_text(self.config)
        if config_path.exists() and (old := config_path.read_bytes()) != text.encode("utf-8"):
            number = 1 + len(list(self.directory.glob("config.before-*.yaml")))
            write_atomic(self.directory / f"config.before-{number}.yaml", old)
        versions = {
            "python": platform.python_version(),
            "libraries": {name: version for name in _LIBRARIES if (version := _version(name)) is not None},
            "plugins": dict(sorted(plugins.items())),
        }
        write_atomic(self.directory / "plugins.json", json.dumps(versions, indent=2) + "\n")
        # Last: this file makes the folder a run.
        write_atomic(config_path, text)

    # Writing.

    def rewind(self, step: int) -> None:
        """Start from this step: metrics and episodes of later steps, and of the one that was cut off, are dropped."""
        self.begin()
        self.metrics.rewind(step)
        self.episode_store.rewind(step)
        self.start_step = step

    def add_tokens(self, pieces: Mapping[int, str]) -> None:
        """Keep the text of token ids, so that a report needs no tokenizer."""
        known = self.known_tokens()
        new = {str(token): piece for token, piece in pieces.items() if token not in known}
        if new:
            self._known_tokens = None  # Where a full disk tears this line, the file is written anew before the next.
            path = self.directory / "tokens.jsonl"
            with naming(path), path.open("ab") as file:
                file.write(json_line(new))
            self._known_tokens = known | set(map(int, new))

    def known_tokens(self) -> set[int]:
        """Ids whose text is kept."""
        if self._known_tokens is None:
            kept = self.tokens()
            if kept:  # again as one line: a kill may have torn the last
                write_atomic(self.directory / "tokens.jsonl", json_line({str(key): kept[key] for key in sorted(kept)}))
            self._known_tokens = set(kept)
        return self._known_tokens

    def write_summary(self, facts: Mapping[str, Any], *, final: bool = False) -> None:
        """Write summary.json: `facts`, and in the final one the summary of the metrics."""
        totals = {"total_steps": self.total_steps, "start_step": self.start_step}
        named = {"name": self.name} | ({"kind": self.kind} if self.kind else {})
        summary = {**named, **facts, **totals, **(self._totals() if final else {})}
        write_atomic(self.directory / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def _totals(self) -> dict[str, Any]:
        lines = self.metrics.read()
        done = [line.step for line in lines if line.kind != "eval"]
        episodes = sum(line.episodes for line in lines)
        return {"steps": max(done, default=0), "episodes": episodes, "metrics": summarise(lines)}

    @property
    def in_place(self) -> bool:
        """Whether the folder that this object writes is still at its path."""
        return self._lock.in_place()

    def check_in_place(self) -> None:
        """Raises RunFolderLostError if the folder was moved or deleted since it was opened."""
        if not self.in_place:
            raise RunFolderLostError(
                "the run's folder was moved or deleted during the run",
                where=str(self.directory),
                hint="Move it back, then go on with --resume: nothing was written after its last step.",
            )

    def close(self) -> None:
        """Stop writing, and release the folder."""
        self.episode_store.close()
        self._lock.release()

    # Reading.

    def __repr__(self) -> str:
        return f"<RunFolder {str(self.directory)!r}: {status(self)}>"

    def _repr_html_(self) -> str:
        """Shows the run as a card in a notebook: its status, the last metrics of each kind, and its report."""
        return card(self)

    def summary(self) -> dict[str, Any]:
        """summary.json with the present status: a "running" run without a process was interrupted. Empty where the run
        never started. Raises DataError."""
        path = self.directory / "summary.json"
        if not path.exists():
            return {}
        try:
            summary: dict[str, Any] = dict(read_json(read_small(path)))
        except (ValueError, TypeError) as error:
            raise DataError(f"not JSON: {error}", where=str(path)) from error
        for name, kinds in _SUMMARY_TYPES.items():
            value = summary.get(name)
            fits = isinstance(value, kinds) and not isinstance(value, bool) and value not in (math.inf, -math.inf)
            if name in summary and (not fits or value != value):
                raise DataError(f"{name}: expected {kinds[0].__name__} (got {value!r:.80})", where=str(path))
        if summary.get("status") == "running" and not self.is_live():
            summary["status"] = "interrupted"
            summary["error"] = {"type": "Killed", "message": "The process was killed, or its machine stopped."}
        return summary if "metrics" in summary else {**summary, **self._totals()}

    def is_live(self) -> bool:
        """Whether this or another process is writing the run now."""
        return self._lock.held or self._lock.held_elsewhere()

    def metrics_lines(self, kind: str | None = None) -> list[MetricsLine]:
        """The lines of metrics.jsonl, of one kind where it is given."""
        return [line for line in self.metrics.read() if kind is None or line.kind == kind]

    def episodes(self, *, kind: str | None = None, steps: Collection[int] | None = None) -> Iterator[StoredEpisode]:
        """Stored episodes by step; of one kind and of some steps where these are given."""
        return self.episode_store.episodes(kind=kind, steps=steps)

    def tokens(self) -> dict[int, str]:
        """The text of each token id that occurs in the episodes; empty where the run didn't keep it."""
        path = self.directory / "tokens.jsonl"
        if not path.exists():
            return {}
        try:
            with open_regular(path) as file:
                return {int(key): str(text) for record in read_lines(file, str(path)) for key, text in record.items()}
        except (AttributeError, ValueError) as error:
            raise DataError(f"a line isn't a mapping of token ids to texts: {error}", where=str(path)) from error

    def versions(self) -> dict[str, Any]:
        """plugins.json, empty where it is missing."""
        return read_versions(self.directory)


def is_run_folder(path: Path) -> bool:
    """Whether a run was started in this folder."""
    return (path / "config.yaml").is_file()


def _check_kind(directory: Path, kind: str | None) -> None:
    """Raise ToolrlError where the run to resume is of another kind: its steps and evaluations would be mixed up."""
    found = None
    with contextlib.suppress(DataError):  # A broken summary is written anew.
        found = RunFolder(directory, {}, 0).summary().get("kind")
    if kind is None or found in (None, kind):
        return
    raise ToolrlError(
        f"this run can't be resumed: it is of the kind {found!r}; expected {kind!r}",
        where=str(directory),
        hint="Leave --resume out, and give the new run another name by --set run.name=NAME.",
    )


def _replaceable(directory: Path, kind: str | None) -> bool:
    """Whether a training run here failed or was stopped before it wrote a checkpoint: it can't be gone on with."""
    summary = RunFolder(directory, {}, 0).summary()
    checkpoints = directory / "checkpoints"
    return (
        kind in ("train", "sft")
        and summary.get("kind") == kind
        and summary.get("status") in ("failed", "interrupted")
        and "checkpoint" not in summary
        and not (checkpoints.is_dir() and any(checkpoints.iterdir()))
    )


def run_and_checkpoint(path: str) -> tuple[Path, str] | None:
    """A run's folder and a checkpoint's name: of `runs/first` the last, of `runs/first:best` the best. None for a path
    that is no run's."""
    if is_run_folder(Path(path)):
        return Path(path), "last"
    run, colon, name = path.rpartition(":")
    return (Path(run), name) if colon and is_run_folder(Path(run)) else None


def describe_run(directory: Path) -> str:
    """A run's status and steps in a few words."""
    return describe(RunFolder(directory, {}, 0).summary())


def _claim(directory: Path, lock: FolderLock) -> bool:
    """Make the folder and lock it: False where another process holds it, ToolrlError where it can't be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return lock.acquire()
    except OSError as error:
        raise unwritable(directory, str(error.strerror or error)) from error


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def config_text(config: Mapping[str, Any]) -> str:
    """A config of plain data as YAML."""
    text: str = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)
    return text
