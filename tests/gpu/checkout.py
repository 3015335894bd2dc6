"""Use toolrl straight from a clone, and tell which packages of others are missing.

Plugins are found by their entry points, which only an installed distribution has. Here each `pyproject.toml` of the
clone gives a `.dist-info` folder with just these, in a temporary folder that stands first on the path, and the packages
come from their `src` folders. So a machine without a registry needs a copy of the clone and nothing built.
"""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
USED = ("qwen", "calculator", "python", "math", "transformers")
"""Plugins that are measured."""
GIVEN = ("torch", "transformers")
"""What comes with a machine: its own builds, as large as all else together."""
OPTIONAL = ("trl",)
"""What one part compares with."""
UNUSED = ("math-verify", "google-re2")
"""What no part comes to import: other rewards and end flags do."""
_MARK = "TOOLRL_CHECKOUT_SITE"


def _projects() -> list[tuple[Path, dict[str, Any]]]:
    folders = [ROOT / "core", *(ROOT / "plugins" / name for name in USED)]
    return [(folder, tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))) for folder in folders]


@functools.cache
def _site() -> str:
    """The temporary folder with the distributions' metadata; a child process uses its parent's."""
    if given := os.environ.get(_MARK):
        return given
    site = Path(tempfile.mkdtemp(prefix="toolrl-checkout-"))
    atexit.register(shutil.rmtree, site, ignore_errors=True)
    for folder, facts in _projects():
        project = facts["project"]
        name, version = project["name"], project.get("version") or _version(folder, facts)
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = "".join(f"Requires-Dist: {need}\n" for need in project["dependencies"])
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}\n")
        groups = project.get("entry-points", {})
        lines = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
                 for group, points in groups.items()]  # fmt: skip
        (info / "entry_points.txt").write_text("\n".join(lines))
    return str(site)


def _version(folder: Path, facts: dict[str, Any]) -> str:
    source = folder / facts["tool"]["hatch"]["version"]["path"]
    found = re.search(r'__version__ = "([^"]+)"', source.read_text(encoding="utf-8"))
    assert found is not None, f"{source} names no version"
    return found[1]


def _paths() -> list[str]:
    return [_site(), *(str(folder / "src") for folder, _ in _projects())]


def environment() -> dict[str, str]:
    """Of a process that is to use the clone."""
    rest = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*_paths(), *([rest] if rest else [])])
    return {
        **os.environ,
        "PYTHONPATH": path,
        _MARK: _site(),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def use() -> None:
    """Use the clone in this process."""
    sys.path[:0] = [path for path in _paths() if path not in sys.path]


def tell_needs() -> int:
    """Print what the clone needs, what of that is missing here, and a line that fetches wheels; 1 where something
    that isn't optional is missing."""
    wanted = sorted({need for _, facts in _projects() for need in _needs(facts["project"])} - {*UNUSED})
    missing = [name for name in wanted if not _installed(name)]
    everything = sorted({*_closure(wanted)} - {*GIVEN})
    print("needed, with what these need:", " ".join(everything))
    print("missing here:", " ".join(missing) or "nothing")
    print("here:", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in GIVEN if _installed(name)))
    print("for the part trl, not needed otherwise:", " ".join(OPTIONAL),
          "" if all(map(_installed, OPTIONAL)) else "(missing here)")  # fmt: skip
    if missing:
        print("Where there is a registry, for a machine without one (and then what each of these needs):")
        print(f"  pip download --no-deps --only-binary=:all: --python-version {sys.version_info[0]}."
              f"{sys.version_info[1]} --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d wheels "
              + " ".join(missing))  # fmt: skip
    return int(bool(missing))


def _needs(project: dict[str, Any]) -> Iterator[str]:
    for need in [*project["dependencies"], *project.get("optional-dependencies", {}).get("train", [])]:
        name = re.split(r"[^\w.-]", need, maxsplit=1)[0]
        if not name.startswith("toolrl"):
            yield name


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _closure(names: list[str]) -> Iterator[str]:
    """The names and what their metadata says that they need, as far as it is installed here; extras left out."""
    waiting, seen = list(names), set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen or name in GIVEN:
            continue
        seen.add(name)
        yield name
        if _installed(name):
            for need in importlib.metadata.requires(name) or []:
                if ";" not in need:
                    waiting.append(re.split(r"[^\w.-]", need, maxsplit=1)[0])
