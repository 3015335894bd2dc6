"""What built-in tools are kept from: paths that a model may not reach.

`storage` joins the model's key to its folder without a look, so that `../x` and `//etc/x` lead anywhere on the machine;
the document tools read whatever path or address they are given. The model's words are checked before such a tool sees
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolrl.errors import ToolError

_DOCUMENTS = {
    "SimpleDocParser": "url",
    "DocParser": "url",
    "WebExtractor": "url",
    "Retrieval": "files",
    "ExtractDocVocabulary": "files",
}
"""Built-in class to the argument that holds paths or addresses."""
_INNER = ("doc_parse", "doc_extractor", "simple_doc_parse")
"""Attributes in which document tools keep others."""


def settle(tool: Any, folder: Path, settings: dict[str, Any]) -> None:
    """Move the caches of a document tool's inner tools, which know no setting for it, into the tool's folder."""
    for name in _INNER if "path" not in settings else ():
        inner: Any = getattr(tool, name, None)
        if hasattr(inner, "data_root"):
            inner.data_root = str(folder)
            inner.db.root = str(folder)
            settle(inner, folder, {})


def guarded(tool: Any, arguments: dict[str, Any], folders: Sequence[Path], *, urls: bool) -> dict[str, Any]:
    """The arguments that the tool may have: paths in full. Raises ToolError."""
    if is_builtin(type(tool), "Storage"):
        _check_key(Path(tool.root), arguments.get("key", "/"))
    for name, key in _DOCUMENTS.items():
        if key in arguments and is_builtin(type(tool), name):
            may_fetch = urls or name == "WebExtractor"
            given = arguments[key]
            if isinstance(given, str) == (key == "files"):
                raise ToolError(f"{key!r} has to be {'a list of paths' if key == 'files' else 'a text'}.")
            checked = [_place(item, folders, urls=may_fetch) for item in (given if key == "files" else [given])]
            return {**arguments, key: checked if key == "files" else checked[0]}
    return arguments


def is_builtin(cls: Any, name: str) -> bool:
    """True for this class of qwen_agent and its subclasses."""
    return any(base.__name__ == name and base.__module__.startswith("qwen_agent.tools.") for base in cls.__mro__)


def _check_key(root: Path, key: Any) -> None:
    if not isinstance(key, str) or "\x00" in key:
        raise ToolError("'key' has to be a text without null characters.")
    # As the tool reads it: one slash goes, and a path that is still absolute replaces the root.
    inside = (root / (key[1:] if key.startswith("/") else key)).resolve()
    if not inside.is_relative_to(root.resolve()):
        raise ToolError(f"The key {key[:200]!r} leads out of the storage.")


def _place(given: Any, folders: Sequence[Path], *, urls: bool) -> str:
    """A path or address as the tool may have it."""
    if not isinstance(given, str) or "\x00" in given:
        raise ToolError("A path has to be a text without null characters.")
    if given.startswith(("http://", "https://")):
        if not urls:
            raise ToolError("This tool can't fetch addresses here: give the path of a file.")
        return given
    for folder in folders:
        try:
            path = (folder / given).resolve()  # An absolute path stays itself.
            if path.is_relative_to(folder.resolve()) and path.is_file():
                return str(path)
        except OSError:  # Such as a name that is too long.
            continue
    raise ToolError(f"There is no file {given[:200]!r} that this tool may read.")
