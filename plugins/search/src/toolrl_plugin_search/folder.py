"""An index's folder: what it says of itself, and how it comes into being at once or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError, DataError

MANIFEST = "index.json"
FORMAT = 1


@contextmanager
def new_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write an index into, which becomes `path` when the block ends well, and vanishes else. Raises
    ConfigError where there is something already."""
    path = path.expanduser().absolute()
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} exists", hint="Choose another folder, or add --overwrite.")
    if path.exists() and not (path / MANIFEST).is_file():
        raise ConfigError(f"{path} is no index, so it isn't overwritten", hint="Choose another folder.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_manifest(folder: Path, kind: str, facts: Mapping[str, Any]) -> None:
    """Last of all files: an index without it isn't whole."""
    text = json.dumps({"format": FORMAT, "kind": kind, **facts}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path, where: str | None = None) -> dict[str, Any]:
    """What an index says of itself. Raises DataError where there is none that can be read."""
    hint = "`toolrl search index CORPUS --out FOLDER` makes an index."
    try:
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{folder} holds no index ({MANIFEST}: {error.strerror})", where=where, hint=hint) from None
    except ValueError as error:
        raise DataError(f"{folder / MANIFEST} can't be read: {error}", where=where, hint=hint) from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise DataError(f"{folder} is no index of the form {FORMAT}", where=where, hint="Make it anew. " + hint)
    return facts
