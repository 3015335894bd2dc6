"""The user's classes in `envs`, read without being run."""

from __future__ import annotations

import ast
from pathlib import Path

from toolrl_plugin_rlfactory.convert.conversion import RLFactoryConversion


def class_beside(settings: RLFactoryConversion, file: str, base: str) -> str | None:
    """The last class of a file in `envs`, beside the script or here, that derives from one called `…base`; as
    `file.py:Class`."""
    for path in (folder / "envs" / file for folder in (settings.folder, Path())):
        nodes = class_nodes(path)
        found = [node.name for node in nodes if any(ast.unparse(item).endswith(base) for item in node.bases)]
        if found:
            return f"{path.as_posix()}:{found[-1]}"
    return None


def class_nodes(file: Path) -> list[ast.ClassDef]:
    """The classes of a file; none of one that can't be read."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node for node in body if isinstance(node, ast.ClassDef)]
