"""Every YAML block and every example is a config, or a part of one, that has no mistake.

A part is completed: a section alone gets a model and an environment, what stands inside an environment gets one around
it. Components are those of this repository, and those of plugins that the same page shows. A file that is named isn't
opened: nothing is built.
"""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from doc_pages import ROOT, Block, blocks, shown_plugins
from pagemaker import source

from toolrl.config.load import check_config
from toolrl.config.model import Config, EnvironmentConfig
from toolrl.plugins.registry import Registry

EXAMPLES = sorted((ROOT / "docs" / "examples").rglob("*.yaml"))
BROUGHT = sorted((ROOT / "docs" / "examples").glob("*/*/pyproject.toml"))
"""Plugins that examples bring along."""
sys.path.extend(str(path.parent) for path in BROUGHT)


class AnyVariable(UserDict[str, str]):
    """An environment in which every variable is set."""

    def __missing__(self, key: str) -> str:
        return "value"

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]


def completed(tree: dict[str, Any]) -> dict[str, Any]:
    """A whole config around a part of one."""
    if set(tree) <= set(EnvironmentConfig.model_fields):
        tree = {"environments": {"default": tree}}
    return {"model": {"path": "models/any"}, "environments": {"default": {}}, **tree}


def is_part_of_a_config(tree: Any) -> bool:
    return isinstance(tree, dict) and (
        set(tree) <= set(Config.model_fields) or set(tree) <= {*EnvironmentConfig.model_fields}
    )


def known_plugins() -> dict[str, ModuleType]:
    """This repository's plugins, those of the examples too."""
    modules = {it.plugin: it.module for it in source.packages()}
    for path in BROUGHT:
        modules |= tomllib.loads(path.read_text(encoding="utf-8"))["project"]["entry-points"]["toolrl.plugins"]
    return {plugin: importlib.import_module(module) for plugin, module in modules.items()}


@contextmanager
def registry_for(page: Path, folder: Path) -> Iterator[Registry]:
    """This repository's plugins and those that the page shows."""
    modules = known_plugins()
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        for plugin in shown_plugins():
            if plugin.page.path == page:
                plugin.install(folder)
                modules |= {name: importlib.import_module(target) for name, target in plugin.entry_points.items()}
        yield Registry.from_modules(modules)
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@pytest.mark.parametrize("block", blocks("yaml", "yml"), ids=str)
def test_yaml_blocks_have_no_mistake(block: Block, tmp_path: Path) -> None:
    tree = yaml.safe_load(block.text)
    assert is_part_of_a_config(tree), "no part of a config: give the block another language than yaml"
    with registry_for(block.page, tmp_path) as registry:
        check_config(completed(tree), source=str(block), registry=registry, environ=AnyVariable())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_have_no_mistake(path: Path) -> None:
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    registry = Registry.from_modules(known_plugins())
    check_config(tree, source=str(path), registry=registry, environ=AnyVariable())


@pytest.mark.parametrize("block", blocks("json", "toml"), ids=str)
def test_json_and_toml_blocks_can_be_read(block: Block) -> None:
    if block.language == "toml":
        assert tomllib.loads(block.text)
    else:
        rows = block.text.splitlines()
        for text in rows if all(row.endswith("}") for row in rows) else [block.text]:
            json.loads(text)
