"""Old names of config keys. A model lists its own, and a config that has one is read with the present name:

    class AlgorithmConfig(Frame):
        old_names: ClassVar[OldNames] = {"loss": "loss_aggregation", "verbose": None}

None stands for a key that has no effect any more. Every old name gets a remark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from toolrl.config.components import options_model, sites
from toolrl.config.paths import Path, format_path
from toolrl.config.problems import model_at
from toolrl.errors import PluginError
from toolrl.plugins.registry import Registry


def rename_old_keys(tree: dict[str, Any], config: type[BaseModel], registry: Registry) -> list[str]:
    """Renames the old keys of a config, and those of its components' options, in place. Returns the remarks."""
    lines = list(_renamed(tree, config))
    for site in sites(tree):
        try:
            model = options_model(registry.get(site.kind, site.name).component)
            lines += _renamed(site.options, model, (*site.path, "options"))
        except PluginError:
            continue  # Checking the component reports it.
    return lines


def _renamed(node: Any, model: type[BaseModel] | None, base: Path = (), path: Path = ()) -> Iterator[str]:
    if isinstance(node, dict):
        for old, new in getattr(model_at(model, path), "old_names", {}).items():
            if old in node and new not in node:  # With both, the old one is an unknown key.
                value = node.pop(old)
                if new is not None:
                    node[new] = value
                what = "has no effect any more; leave it out" if new is None else f"is called `{new}` now"
                yield f"{format_path((*base, *path, old))}: {what}"
    for key, item in list(
        node.items() if isinstance(node, dict) else enumerate(node if isinstance(node, list) else ())
    ):
        yield from _renamed(item, model, base, (*path, key))
