"""What a worker process does that answers calls of tools; see `subprocess_main`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from toolrl.tools.function import FunctionTool
from toolrl.tools.prints import make_all_prints_visible
from toolrl.tools.subprocess_main import Run


def build() -> Run:
    """Answers calls of tools: `target` is the tool's `module:attribute`, without `arguments` it is only imported."""
    make_all_prints_visible()
    tools: dict[str, Run] = {}

    def answer(request: Mapping[str, Any]) -> dict[str, Any]:
        target = request["target"]
        if target not in tools:
            tools[target] = load(target)
        return {"result": tools[target](request["arguments"])} if "arguments" in request else {"ready": True}

    return answer


def load(target: str) -> Run:
    """What runs the calls of the tool at `module:attribute`."""
    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return (found if isinstance(found, FunctionTool) else FunctionTool(found)).run_here
