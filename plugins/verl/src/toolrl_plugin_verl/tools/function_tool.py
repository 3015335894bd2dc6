"""Stand-in for verl's `verl.tools.function_tool`: a function that its file registers as a tool.

    @function_tool
    def add(a: int, b: int) -> str: ...

    @function_tool("web_search", schema={…})
    async def search(query): ...

The function stays as it is. The file is named by the toolset's option `function_tool_path`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolrl_plugin_verl.tools.schemas import OpenAIFunctionToolSchema

MARK = "__verl_function_tool__"


@dataclass(frozen=True)
class Registered:
    """A registered function."""

    name: str
    fn: Callable[..., Any]
    tool_schema: Mapping[str, Any] | None
    """In the OpenAI form; None where the function's hints and docstring say it."""


def function_tool(name: Any = None, *, schema: Any = None) -> Any:
    """Register a function, bare or with a name of the tool's own. `schema` is a tool's schema as it is to be used, an
    OpenAIFunctionToolSchema or a dict."""
    if callable(name) and schema is None:
        return _register(name, None, None)

    def decorator(fn: Callable[..., Any]) -> Callable[..., Any]:
        return _register(fn, name, schema)

    return decorator


def _register(fn: Callable[..., Any], name: str | None, schema: Any) -> Callable[..., Any]:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"@function_tool takes a name, got {name!r:.80}")
    form: Mapping[str, Any] | None = schema
    if isinstance(schema, OpenAIFunctionToolSchema):
        form = schema.model_dump(exclude_unset=True, exclude_none=True)
    setattr(fn, MARK, Registered(name or str(getattr(fn, "__name__", "tool")), fn, form))
    return fn
