"""The data set `huggingface`: rows that the library `datasets` loads, as tasks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from toolrl.builtin.datasets import FileDataset
from toolrl.builtin.given_rows import ArrowRows
from toolrl.builtin.rows import JoinedRows
from toolrl.errors import DataError
from toolrl.protocols import BuildContext
from toolrl_plugin_huggingface.options import BUILDERS, HuggingFaceOptions

_log = logging.getLogger(__name__)
BATCH = 256
"""Rows that streaming reads at once."""


def load(options: HuggingFaceOptions, context: BuildContext) -> FileDataset:
    """The data set. Raises DataError where it can't be loaded."""
    options.check_files()
    path = options.local
    name = Path(options.path) if path is None else path / path.name if path.is_dir() else path
    rows = ArrowRows(_loaded(options, path, context.where), name)
    return FileDataset(JoinedRows([rows], options.limit), options.fields, options.environment)


def _loaded(options: HuggingFaceOptions, path: Path | None, where: str) -> Any:
    import datasets

    arguments: dict[str, Any] = {"split": options.split, "streaming": options.streaming}
    if path is not None and path.is_file():
        source = BUILDERS[path.suffix]
        arguments["data_files"] = str(path)
        if source == "csv":  # An answer may be NA, None or null. Only an empty cell holds nothing.
            arguments |= {"keep_default_na": False, "na_values": [""]}
    else:
        source = options.path if path is None else str(path)
        arguments |= {"data_files": options.files or None, "revision": options.revision}
    try:
        found = datasets.load_dataset(source, options.config, **arguments)
        _check_patterns(options, path, where)
        return _first_rows(found, options.limit) if options.streaming else found
    except DataError:
        raise
    except Exception as error:  # the library raises its own errors, ValueError, OSError and Arrow's
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{options.path!r} can't be loaded: {lines[0]}", where=where) from error


def _check_patterns(options: HuggingFaceOptions, path: Path | None, where: str) -> None:
    """Raise DataError for an entry of `files` that matches no file: beside others that do, the library passes it over.
    A hub that can't be asked, as without a network, is not."""
    from datasets.data_files import resolve_pattern

    revision = f"@{options.revision}" if options.revision else ""
    base = str(path) if path is not None else f"hf://datasets/{options.path}{revision}"
    for pattern in options.files if path is None or path.is_dir() else ():
        try:
            resolve_pattern(pattern, base)
        except FileNotFoundError as error:
            hint = "Check the pattern; it begins at the repository's, or the folder's, top."
            raise DataError(
                f"files: {pattern!r} matches no file of {options.path!r}", where=where, hint=hint
            ) from error
        except Exception as error:  # noqa: BLE001 - the library's, of the network or of the hub
            _log.debug("files: %r wasn't looked up: %s", pattern, error)


def _first_rows(stream: Any, limit: int | None) -> Any:
    import pyarrow
    from datasets import Dataset

    tables = list(stream.take(limit).with_format("arrow").iter(batch_size=BATCH))
    return Dataset(pyarrow.concat_tables(tables)) if tables else Dataset.from_dict({})
