"""Imports go down only, and only the layers that may import torch do so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "core" / "src" / "toolrl"

LAYERS = [
    {"__main__"},
    {"api"},
    {"cli"},
    {"assembly"},
    {"run_builder"},
    {"early_parts"},
    {"preflight"},
    {"python_objects"},
    {"builtin"},
    {"loop"},
    {"rollouts"},
    {"building"},
    {"chat", "tools", "runs"},
    {"config"},
    {"plugins"},
    {"hookspecs", "component", "kinds"},
    {"parsing"},
    {"protocols"},
    {"agent_protocols", "training_protocols"},
    {"types", "errors"},
    {"message_types"},
    {"token_types", "tracebacks", "terminal_text", "bounded_json", "version"},
]
"""From the top down. A module may import those of its own row's name and of the rows below."""

HEAVY = {"torch", "transformers", "ray", "vllm"}
"""What core never imports, also not inside of functions or by name."""


def _modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _part(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """What a module imports, also in functions, as `package.module.name`, and whether for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checking = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in checking) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", id(node) in checking) for alias in node.names)


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The same with strings that are the name of a module of core: something will import it by that name."""
    yield from imports(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_module(node.value):
            yield node.value.partition(":")[0], False


def _is_module(text: str) -> bool:
    """Whether a string is the name of a module of core, or of something in it: `toolrl.tools.policy:Policy`."""
    name = re.fullmatch(r"toolrl((?:\.\w+)+)(:[\w.]+)?", text)
    if name is None:
        return False
    place = SOURCE.joinpath(*name[1][1:].split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def _layer(part: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if part in names)


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    part = _part(path)
    if part == "__init__":
        return
    for name, checking_only in _imports(path):
        words = name.split(".")
        if checking_only or words[0] != "toolrl" or len(words) < 2:
            continue
        other = words[1]
        if other == part:
            continue
        assert _layer(other) > _layer(part), f"{path.relative_to(SOURCE)} imports {name}, which stands above it"


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_core_imports_no_torch_transformers_ray_or_vllm(path: Path) -> None:
    for name, checking_only in _imports(path):
        assert checking_only or name.split(".")[0] not in HEAVY, f"{path.relative_to(SOURCE)} imports {name}"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__", "find_spec")):
            named = {value.value for value in node.args if isinstance(value, ast.Constant)}
            assert not named & HEAVY, f"{path.relative_to(SOURCE)}, line {node.lineno}: {ast.unparse(node)}"
