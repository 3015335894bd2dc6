"""Messages advise packages, extras, modules and names that are there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from toolrl.kinds import KINDS
from toolrl.plugins.registry import load_registry

ROOT = Path(__file__).parents[2]
PROJECTS = {file.parent: tomllib.loads(file.read_text())["project"] for file in ROOT.glob("*/**/pyproject.toml")}
PACKAGES = {
    project["name"]: set(project.get("optional-dependencies", ()))
    for folder, project in PROJECTS.items()
    if folder == ROOT / "core" or folder.parent == ROOT / "plugins"
}
_DISTRIBUTION = re.compile(r"(?<![\w./-])(toolrl(?:-plugin-[a-z0-9]+(?:-[a-z0-9]+)*|(?=\[)))(?:\[([a-z0-9,_-]+)\])?")
_MODULE = re.compile(r"\btoolrl_plugin_[a-z0-9_]+(?:\.[A-Za-z_]\w*)*")
_USE = re.compile(r"(?<![\w-])use: ?([a-z][a-z0-9_/-]+)")
_IMPORT = re.compile(r"from (toolrl[\w.]*) import (\w+)")


def texts() -> Iterator[tuple[str, str]]:
    """Every literal text of the code that is no docstring, and where it is; what is filled in stands as `…`."""
    for file in sorted([*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]):
        tree = ast.parse(file.read_text())
        bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare | inside:
                text = node.value
            else:
                continue
            yield f"{file.relative_to(ROOT)}:{node.lineno}", text


def test_every_distribution_that_is_named_is_one_with_its_extras() -> None:
    wrong = [
        f"{place}: {match[0]}"
        for place, text in texts()
        for match in _DISTRIBUTION.finditer(text.replace("toolrl-plugin-…", ""))
        if match[1] not in PACKAGES or not set((match[2] or "").split(",")) - {""} <= PACKAGES[match[1]]
    ]
    assert not wrong


def test_every_module_that_is_named_can_be_imported() -> None:
    names: dict[str, str] = {}
    for place, text in texts():
        names |= {f"{match[1]}.{match[2]}": place for match in _IMPORT.finditer(text)}
        names |= {match[0]: place for match in _MODULE.finditer(text) if "…" not in text[match.end() :][:2]}
    assert "toolrl_plugin_rlfactory.managers" in names
    for name, place in names.items():
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            assert _is_there(name), f"{place}: {name}"


def test_every_component_that_is_named_is_one() -> None:
    registry = load_registry()
    known = {name for kind in KINDS for found in registry.components(kind) for name in found.names}
    named = {match[1]: place for place, text in texts() for match in _USE.finditer(text)}
    assert "python/code_interpreter" in named
    assert not {name: place for name, place in named.items() if name not in known}


def _is_there(name: str) -> bool:
    """As a module, or as a name in one. A module that needs a library which isn't installed counts."""
    module, _, attribute = name.rpartition(".")
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # `module` is no package.
        found = None
    try:
        return found is not None or (bool(module) and hasattr(importlib.import_module(module), attribute))
    except ModuleNotFoundError as error:
        return error.name is not None and not error.name.startswith("toolrl")
