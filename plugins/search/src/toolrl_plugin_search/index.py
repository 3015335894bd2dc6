"""Opens an index of any kind."""

from __future__ import annotations

from pathlib import Path

from toolrl.errors import DataError
from toolrl_plugin_search.folder import read_manifest
from toolrl_plugin_search.passages import Index


def open_index(
    folder: Path, *, encoder: str | None = None, device: str | None = None, where: str | None = None
) -> Index:
    """The index in a folder. `encoder` and `device` are for a dense one: the folder of its model, if it isn't where it
    was when the index was made, and cpu (by default) or cuda. Raises DataError, ConfigError, PluginError."""
    folder = folder.expanduser()
    kind = read_manifest(folder, where).get("kind")
    if kind == "bm25":
        from toolrl_plugin_search.bm25 import Bm25Index

        return Bm25Index(folder)
    if kind == "dense":
        from toolrl_plugin_search.dense import DenseIndex

        return DenseIndex(folder, encoder=encoder, device=device or "cpu")
    raise DataError(f"{folder} is an index of an unknown kind, {kind!r}", where=where, hint="Make it anew.")
