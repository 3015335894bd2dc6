"""No circles of imports within a package, and plugins import of core what is public only."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from test_layers import imports  # noqa: E402 - beside this file

PACKAGES = sorted(path.parent for path in ROOT.glob("*/src/*/__init__.py")) + sorted(
    path.parent for path in ROOT.glob("plugins/*/src/*/__init__.py")
)


def _imports(path: Path) -> Iterator[str]:
    """What a module imports, also in functions, as `package.module.name`; imports for type checking are left out."""
    return (name for name, checking_only in imports(path) if not checking_only)


def _modules(package: Path) -> dict[str, Path]:
    """A package's modules by their dotted names."""
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }


def _module_of(name: str, modules: dict[str, Path]) -> str | None:
    """The module that a dotted name is, or stands in."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def _circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, in order; empty where there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_module_imports_itself_by_a_detour(package: Path) -> None:
    modules = _modules(package)
    graph = {
        name: {other for it in _imports(path) if (other := _module_of(it, modules)) and other != name}
        for name, path in modules.items()
    }
    assert _circle(graph) == []


# What plugins import of core.

PAGE = (ROOT / "docs" / "reference" / "public-modules.md").read_text(encoding="utf-8")
CORE = _modules(ROOT / "core" / "src" / "toolrl")
FRAMEWORK = {
    *(f"toolrl_plugin_{name}" for name in ("gateway", "ray", "start", "torch")),
    "toolrl_common",
    "toolrl_testing",
}


def _listed(title: str) -> set[str]:
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(toolrl[\w.]*)` \|", section, re.MULTILINE))


PUBLIC, CLOSER = _listed("For any plugin"), _listed("For parts of the framework")


def test_the_listed_modules_are_there() -> None:
    assert sorted((PUBLIC | CLOSER) - CORE.keys()) == []


@pytest.mark.parametrize("package", [it for it in PACKAGES if it.name != "toolrl"], ids=lambda package: package.name)
def test_plugins_import_what_is_public(package: Path) -> None:
    allowed = PUBLIC | CLOSER if package.name in FRAMEWORK else PUBLIC
    others = {
        f"{name} imports {imported}"
        for name, path in _modules(package).items()
        for imported in _imports(path)
        if imported.partition(".")[0] == "toolrl" and _module_of(imported, CORE) not in allowed
    }
    assert sorted(others) == []


def test_private_names_stay_private() -> None:
    private = {
        f"{path.relative_to(ROOT)} imports {imported}"
        for package in PACKAGES
        if package.name != "toolrl"
        for path in _modules(package).values()
        for imported in _imports(path)
        if imported.startswith("toolrl.") and re.match(r"_(?!_)", imported.rpartition(".")[2])
    }
    assert sorted(private) == []
