"""toolrl from a checkout that isn't installed: source folders, the plugins' metadata, and wheels of what is missing."""

from __future__ import annotations

import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def import_paths(folder: Path, wheels: Path | None) -> list[str]:
    """What PYTHONPATH needs. `folder` takes the metadata, and the contents of the wheels, which are of this Python."""
    sources = []
    for file in [ROOT / "core" / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]:
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        sources.append(str(file.parent / "src"))
        info = folder / f"{project['name'].replace('-', '_')}-0.1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        headers = ["Metadata-Version: 2.1", f"Name: {project['name']}", "Version: 0.1.0"]
        headers += [f"Requires-Dist: {need}" for need in project["dependencies"]]
        (info / "METADATA").write_text("\n".join(headers) + "\n", encoding="utf-8")
        (info / "entry_points.txt").write_text("\n".join(_entry_points(project)) + "\n", encoding="utf-8")
    for wheel in sorted(wheels.glob("*.whl")) if wheels is not None else ():
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
    return [*sources, str(folder)]


def _entry_points(project: dict[str, Any]) -> Iterator[str]:
    for group, points in project.get("entry-points", {}).items():
        yield f"[{group}]"
        yield from (f"{name} = {value}" for name, value in points.items())
