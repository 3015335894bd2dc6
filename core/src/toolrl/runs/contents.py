"""Files of a run folder: which belong to the run, and whether they hold work that must be kept."""

from __future__ import annotations

import shutil
from pathlib import Path

from toolrl.errors import ToolrlError
from toolrl.runs.log import NAME, OLDER

OWN_FILES = ("plugins.json", "metrics.jsonl", "tokens.jsonl", "summary.json", "report.html", NAME, OLDER)
OWN_FOLDERS = ("episodes", "checkpoints", "tensorboard")


def is_idle(directory: Path) -> bool:
    """Whether the run here ended before it left anything worth keeping."""
    metrics = directory / "metrics.jsonl"
    folders = (directory / name for name in OWN_FOLDERS)
    return not (metrics.exists() and metrics.stat().st_size) and not any(
        folder.is_dir() and any(folder.iterdir()) for folder in folders
    )


def is_leftover(path: Path) -> bool:
    """Whether a file is left by a run that was killed before it wrote its config."""
    return path.name in (".lock", "plugins.json", "workers") or (
        path.name.startswith(".") and path.suffix == ".tmp"
    )


def delete_run(directory: Path) -> None:
    """Delete what a run wrote into its folder."""
    for name in OWN_FOLDERS:
        shutil.rmtree(directory / name, ignore_errors=True)
    for path in [*(directory / name for name in OWN_FILES), *directory.glob("config*.yaml")]:
        path.unlink(missing_ok=True)


def being_written(directory: Path) -> ToolrlError:
    return ToolrlError(
        "another process is writing this run",
        where=str(directory),
        hint="Wait for it or stop it, or give this run another name by --set run.name=NAME.",
    )


def unwritable(directory: Path, reason: str) -> ToolrlError:
    return ToolrlError(
        f"the run folder can't be written: {reason}",
        where=str(directory),
        hint="Name another place by --set run.dir=FOLDER.",
    )
