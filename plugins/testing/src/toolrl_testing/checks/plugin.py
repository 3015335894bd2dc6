"""Contracts of the plugin itself: discovery, descriptors, options."""

from __future__ import annotations

import importlib.metadata
import json
import pickle
import subprocess
import sys
from collections.abc import Iterable

from pydantic import BaseModel

from toolrl.component import Component
from toolrl_testing.checks import fail, require

HEAVY = ("torch", "transformers", "vllm", "ray", "pydantic", "jsonschema", "numpy", "yaml", "rich")
"""What discovery must not import: each costs more than the listing itself."""
GROUP = "toolrl.plugins"

_PROBE = """
import importlib, json, sys
before = set(sys.modules)
importlib.import_module(sys.argv[1])
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(new & set(sys.argv[2:]))))
"""


def entry_point(plugin: str) -> importlib.metadata.EntryPoint:
    """The plugin's entry point; there must be exactly one of this name."""
    found = list(importlib.metadata.entry_points(group=GROUP, name=plugin))
    known = sorted(point.name for point in importlib.metadata.entry_points(group=GROUP))
    require(
        len(found) == 1,
        f"{len(found)} entry points {GROUP!r} are called {plugin!r}, expected one. Installed: {', '.join(known)}. "
        "Is the plugin installed (pip install -e .), and is its entry point written in pyproject.toml?",
    )
    return found[0]


def check_discovery_is_light(module: str) -> None:
    """Importing the plugin's module in a fresh interpreter brings in nothing heavy."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, module, *HEAVY], capture_output=True, text=True, timeout=120, check=False
    )
    require(done.returncode == 0, f"{module} can't be imported:\n{done.stderr}")
    heavy = json.loads(done.stdout.strip().splitlines()[-1])
    require(
        not heavy,
        f"importing {module} imports {', '.join(heavy)}. Keep the module to hookimpls and Components, which name their "
        "targets as strings; hints of heavy types go under `if TYPE_CHECKING:`.",
    )


def check_descriptors(components: Iterable[tuple[str, Component[object]]]) -> None:
    """(kind, component) pairs: named once, described, and fit to be sent to a worker."""
    seen: set[tuple[str, str]] = set()
    for kind, component in components:
        require((kind, component.name) not in seen, f"two {kind} are called {component.name!r}")
        seen.add((kind, component.name))
        require(
            component.summary.strip() and "\n" not in component.summary,
            f"component {component.name!r} needs a summary of one line: `toolrl list-plugins` shows it",
        )
        require(pickle.loads(pickle.dumps(component)) == component, f"component {component.name!r} doesn't pickle")


def check_resolves(component: Component[object]) -> None:
    """The target and the self-check can be imported, and called."""
    require(callable(component.load()) or not isinstance(component.load(), str), f"{component.target} is a text")
    check = component.load_check()
    require(check is None or callable(check), f"the check {component.check!r} of {component.name!r} isn't callable")


def check_options(component: Component[object]) -> None:
    """The options model is a pydantic one that refuses unknown keys and describes every field."""
    model = component.load_options()
    if model is None:
        return
    where = f"the options model {component.options!r}"
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        fail(f"{where} isn't a pydantic model class")
    require(
        model.model_config.get("extra") == "forbid",
        f"{where} accepts unknown keys, so a misspelled option goes unnoticed. "
        'Write model_config = ConfigDict(extra="forbid")',
    )
    for name, field in model.model_fields.items():
        require(field.description, f"{where}: field {name!r} has no description; the reference is made from it")
