"""`@tool`: a typed function becomes a tool.

    @tool
    def add(a: int, b: int = 0) -> int:
        \"\"\"Add two integers.

        Args:
            a: First summand.
            b: Second summand.
        \"\"\"
        return a + b

Name, description and JSON Schema come from the function; a parameter of type EpisodeContext is handed in and never
shown to the model. A synchronous function runs in a thread, so that it can't hold up other episodes. The hop costs tens
of microseconds; a function that always returns in much less than a millisecond does without: `@tool(inline=True)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, overload

from toolrl.protocols import EpisodeContext
from toolrl.tools.results import as_result
from toolrl.tools.schema import Signature
from toolrl.tools.threads import POOL
from toolrl.tools.traits import ToolTraits, check_tool_name
from toolrl.types import ToolResult, ToolSpec


class FunctionTool:
    """A function with what the model is told of it. Calling it calls the function, so it can be tested as one."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        pure: bool = False,
        timeout: float | None = None,
        inline: bool = False,
    ) -> None:
        if not callable(function):
            raise TypeError(f"@tool takes a function, got {function!r:.80}")
        if timeout is not None and timeout <= 0:
            raise ValueError(f"@tool: timeout is {timeout}, expected seconds above 0")
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        check_tool_name(self.name)
        self._signature = Signature(function, self.name, description)
        self._async = is_async(function)
        self._inline = inline
        self.function = function
        self.traits = ToolTraits(pure, timeout)
        functools.update_wrapper(self, function)

    @property
    def spec(self) -> ToolSpec:
        return self._signature.spec

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def run(self, arguments: Mapping[str, Any], episode: EpisodeContext) -> ToolResult:
        """Answer one call. Raises ArgumentsError for arguments that don't fit, TypeError for a wrong return."""
        keywords = self._signature.coerce(arguments)
        if self._signature.injected is not None:
            keywords[self._signature.injected] = episode
        if self._async:
            value = await self.function(**keywords)
        elif self._inline:
            value = self.function(**keywords)
        else:
            value = await POOL.submit(self.function, **keywords)
        return as_result(value, self.name)

    def __repr__(self) -> str:
        return f"<tool {self.name!r}>"


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    pure: bool = False,
    timeout: float | None = None,
    inline: bool = False,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    pure: bool = False,
    timeout: float | None = None,
    inline: bool = False,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a typed function, sync or async. Works bare and with options.

    Args:
        name: What the model calls it; the function's name by default.
        description: What the model is told; the docstring up to its sections by default.
        pure: The same arguments always give the same answer, and nothing else happens: identical calls of one turn run
            once.
        timeout: Seconds a call may take, unless the config sets it.
        inline: Run a synchronous function on the event loop itself. Only for what returns in much less than a
            millisecond: every episode waits for it.
    """

    def make(target: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(target, name=name, description=description, pure=pure, timeout=timeout, inline=inline)

    return make if function is None else make(function)


def is_async(function: Callable[..., Any]) -> bool:
    """True for coroutine functions, also behind functools.partial and for objects with an async `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - its method, not whether there is one
    )
