"""Every `pip install` line that a page or a notebook shows works as it is written in a clone: it names all folders that
it needs.

Packages of this repository are looked for nowhere else, so a line also names those that its packages depend on.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from doc_pages import ROOT, pages
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

APART = {"toolrl-plugin-mcp", "toolrl-plugin-verifiers"}
"""What these need takes different versions of the library mcp: pip finds none for both."""
_LINE = re.compile(r"pip install ((?:'[^']*'|\"[^\"]*\"|[^`#\n&'\"])*)")


@cache
def projects() -> dict[str, tuple[str, dict[str, Any]]]:
    """Folder and `[project]` of each distribution of this repository."""
    found = {}
    for path in (ROOT / "core" / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        found[canonicalize_name(project["name"])] = f"./{path.parent.relative_to(ROOT)}", project
    return found


def needs(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """What a distribution with these extras needs of this repository, itself included."""
    todo, seen = [(name, extras)], set[tuple[str, frozenset[str]]]()
    while todo:
        item = todo.pop()
        if item in seen:
            continue
        seen.add(item)
        yield item
        project = projects()[item[0]][1]
        optional = project.get("optional-dependencies", {})
        for text in [*project["dependencies"], *(text for extra in item[1] for text in optional[extra])]:
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) in projects():
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))


def problems(words: list[str]) -> Iterator[str]:
    """What is wrong with the arguments of a `pip install` that also installs what its packages need."""
    folders = {folder: name for name, (folder, _) in projects().items()}
    given: dict[str, set[str]] = {}
    for word in words:
        path, _, extras = word.rstrip("]").partition("[")
        if canonicalize_name(path) in projects():
            yield f"{word}: write {projects()[canonicalize_name(path)][0]}"
        place = f"./{path.removeprefix('./')}"
        if place in folders:
            given.setdefault(folders[place], set()).update(filter(None, extras.split(",")))
    if given.keys() >= APART:
        yield f"{' and '.join(APART)} can't be installed together"
    for name, extras in given.items():
        needed = {needed for needed, _ in needs(name, frozenset(extras))}
        yield from (f"{projects()[name][0]} needs {projects()[one][0]}" for one in needed - given.keys())


def shown() -> dict[str, str]:
    """Text of each page and notebook by its path in the repository."""
    texts = {str(it): it.path.read_text(encoding="utf-8") for it in pages()}
    for path in sorted(ROOT.glob("docs/**/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts[str(path.relative_to(ROOT))] = "\n\n".join("".join(cell["source"]) for cell in cells)
    return texts


@pytest.mark.parametrize("page", [name for name, text in shown().items() if "pip install" in text])
def test_what_is_installed_is_in_the_clone(page: str) -> None:
    for match in _LINE.finditer(shown()[page]):
        if "$(" in match[1]:
            continue  # A shell finds its words.
        words = shlex.split(match[1])
        found = list(problems([word for word in words if not word.startswith("-")]))
        assert "--no-deps" in words or not found, f"pip install {match[1]}"


def test_no_text_says_that_core_train_is_enough() -> None:
    """Its extra needs plugins, which pip finds in a clone only where the line names them."""
    for name, text in shown().items():
        for folder in re.findall(r"install `(\./core(?:\[\w+\])?)`|need `(\./core\[\w+\])`", text):
            assert not list(problems(["".join(folder)])), name
