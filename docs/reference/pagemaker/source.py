"""What the pages are made from: the modules and plugins of this repository."""

from __future__ import annotations

import ast
import importlib
import inspect
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolrl.plugins.registry import Registry

ROOT = Path(__file__).resolve().parents[3]
CORE = ROOT / "core" / "src" / "toolrl"


@dataclass(frozen=True)
class Package:
    """A distribution of this repository that brings a plugin."""

    plugin: str
    """The entry point's name."""
    module: str
    distribution: str
    description: str
    folder: Path


@cache
def packages() -> tuple[Package, ...]:
    """Core first, then plugins/* by name."""
    found = []
    for folder in (ROOT / "core", *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for plugin, module in project.get("entry-points", {}).get("toolrl.plugins", {}).items():
            found.append(Package(plugin, module, project["name"], project["description"], folder))
    return tuple(found)


def needed_folders(folder: Path) -> list[str]:
    """Names of the folders in plugins/ that a plugin needs, directly or not, and that aren't its own."""
    projects = {
        project["name"]: (path.parent.name, project["dependencies"])
        for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))
        for project in [tomllib.loads(path.read_text(encoding="utf-8"))["project"]]
    }
    found: set[str] = set()
    todo = [needs for name, needs in projects.values() if name == folder.name]
    while todo:
        names = {text.partition(">")[0].partition("[")[0] for text in todo.pop()} & projects.keys()
        todo += [projects[name][1] for name in names if projects[name][0] not in found]
        found |= {projects[name][0] for name in names}
    return sorted(found)


@cache
def registry() -> Registry:
    """The plugins of this repository. Raises RuntimeError where one of them can't be used."""
    from toolrl.plugins.registry import Registry

    made = Registry.from_modules({it.plugin: importlib.import_module(it.module) for it in packages()})
    for plugin in made.unusable():
        raise RuntimeError(f"the plugin {plugin.name} is {plugin.describe()}\n{plugin.traceback}")
    return made


# Reading source text: where importing a module would need torch, and for the docstrings of fields.


@dataclass(frozen=True)
class FieldDoc:
    """A field of a class."""

    name: str
    annotation: str
    default: str | None
    doc: str


@dataclass(frozen=True)
class MethodDoc:
    """A method of a class."""

    name: str
    signature: str
    """As it is written, without `self`."""
    doc: str
    is_property: bool = False


@dataclass(frozen=True)
class ClassDoc:
    """A class: its docstring and what stands in its body."""

    name: str
    doc: str
    fields: list[FieldDoc] = field(default_factory=list)
    methods: list[MethodDoc] = field(default_factory=list)
    bases: tuple[str, ...] = ()


def tree(module: str) -> ast.Module:
    """The syntax tree of a module of core, such as `loop.metrics`, or of a plugin, such as `torch:trainer`."""
    plugin, _, name = module.rpartition(":")
    folder = ROOT / "plugins" / plugin / "src" / f"toolrl_plugin_{plugin}" if plugin else CORE
    return ast.parse((folder / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))


def module_doc(module: str) -> str:
    """The docstring of a module, named as `tree` takes it."""
    text = ast.get_docstring(tree(module))
    if not text:
        raise ValueError(f"{module} has no docstring")
    return text


def classes(module: str) -> dict[str, ClassDoc]:
    """The public classes of a module of core, in their order."""
    return {
        node.name: _class(node)
        for node in tree(module).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def _class(node: ast.ClassDef) -> ClassDoc:
    fields, methods = [], []
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            default = ast.unparse(statement.value) if statement.value is not None else None
            doc = _text(following) or ""
            fields.append(FieldDoc(statement.target.id, ast.unparse(statement.annotation), default, doc))
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            # A class attribute that takes its type from the base.
            fields.append(FieldDoc(statement.targets[0].id, "", ast.unparse(statement.value), _text(following) or ""))
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and _is_public(statement.name):
            methods.append(_method(statement))
    bases = tuple(ast.unparse(base) for base in node.bases)
    return ClassDoc(node.name, ast.get_docstring(node) or "", fields, methods, bases)


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__len__", "__getitem__")


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> MethodDoc:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    signature = f"{prefix} {node.name}({ast.unparse(arguments)}){returns}"
    return MethodDoc(node.name, signature, ast.get_docstring(node) or "", "property" in decorators)


def _text(node: ast.stmt | None) -> str | None:
    """The text of a statement that is nothing but a string."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return None
