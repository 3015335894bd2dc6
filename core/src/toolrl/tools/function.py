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
of microseconds; an `async def` that always returns in much less than a millisecond does without. One that computes for
long asks for a process, `@tool(process=True)`: threads share one interpreter lock.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import operator
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypedDict, Unpack, overload

from toolrl.protocols import EpisodeContext
from toolrl.tools.callables import name_of
from toolrl.tools.prints import make_all_prints_visible
from toolrl.tools.process_tools import PROCESSES
from toolrl.tools.results import as_result
from toolrl.tools.schema import Signature
from toolrl.tools.subprocess_main import Run
from toolrl.tools.threads import POOL, Lane
from toolrl.tools.traits import ToolTraits, check_tool_name
from toolrl.types import ToolResult, ToolSpec


class FunctionTool:
    """A function with its spec. Calling it calls the function, so it can be tested as one."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        pure: bool = False,
        timeout: float | None = None,
        idempotent: bool = False,
        process: bool = False,
        endpoint: str | None = None,
    ) -> None:
        self.name: str = name or name_of(function)
        check_tool_name(self.name)
        self._signature = Signature(function, self.name, description)
        self._async = is_async(function)
        self._lane = Lane(self.name, POOL)
        self.function = function
        self.traits = ToolTraits(
            pure,
            timeout,
            idempotent,
            endpoint,
            process=self._target() if process else None,
            per_episode=self._signature.injected is not None,
        )
        functools.update_wrapper(self, function, updated=())

    @property
    def spec(self) -> ToolSpec:
        return self._signature.spec

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def run(self, arguments: Mapping[str, Any], episode: EpisodeContext) -> ToolResult:
        """Answer one call. Raises ArgumentsError for arguments that don't fit, TypeError for a wrong return."""
        if self.traits.process is not None:
            return await PROCESSES.call(self.traits.process, arguments)
        keywords = self._signature.coerce(arguments)
        if self._signature.injected is not None:
            keywords[self._signature.injected] = episode
        if self._async:
            return await self._finished(self.function(**keywords))
        return await self._finished(await self._lane.call(self._work, keywords))

    def run_here(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one call in a worker process: the fields of the result, as JSON can hold them."""
        made = self._work(self._signature.coerce(arguments))
        result = made if isinstance(made, ToolResult) else asyncio.run(self._finished(made))
        if any(not isinstance(media.data, str) for media in result.media):
            raise TypeError(f"tool {self.name!r} runs in a process: an image or a video leaves it as a file's path")
        return {
            "text": result.text,
            "error": result.error,
            "reward": result.reward,
            "metrics": dict(result.metrics),
            "done": result.done,
            "truncated": result.truncated,
            "media": [(media.kind, media.data) for media in result.media],
        }

    def _work(self, keywords: Mapping[str, Any]) -> ToolResult | Awaitable[Any]:
        """The result, or what a plain wrapper of an async function returned, to be awaited on the event loop."""
        made = self.function(**keywords)
        return made if inspect.isawaitable(made) else as_result(made, self.name)

    async def _finished(self, made: ToolResult | Awaitable[Any]) -> ToolResult:
        """The result of `_work`, or of a coroutine function."""
        return made if isinstance(made, ToolResult) else as_result(await made, self.name)

    def _target(self) -> str:
        """Where a worker process finds the function. Raises TypeError for one that can't run there."""
        module, name = str(getattr(self.function, "__module__", "")), str(getattr(self.function, "__qualname__", ""))
        special = self._async or self._signature.injected is not None
        if special or not name or "<" in name or module == "__main__":
            raise TypeError(
                f"tool {self.name!r} can't run in a process: it has to be a plain function without an EpisodeContext, "
                "at the top of a module that isn't the script"
            )
        return f"{module}:{name}"

    def __repr__(self) -> str:
        return f"<tool {self.name!r}>"


class FunctionToolOptions(TypedDict, total=False):
    """Options of `@tool`, whose docstring explains them."""

    name: str
    description: str
    pure: bool
    timeout: float
    idempotent: bool
    process: bool
    endpoint: str


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(**options: Unpack[FunctionToolOptions]) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, **options: Unpack[FunctionToolOptions]
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a typed function, sync or async. Works bare and with options.

    Args:
        name: What the model calls it; the function's name by default.
        description: What the model reads; the docstring up to its sections by default.
        pure: The same arguments always give the same answer, and nothing else happens: the config's `policy.cache` may
            keep answers.
        timeout: Seconds a call may take, unless the config sets it.
        idempotent: Calling twice does no more than calling once, so that a call which timed out may be made again.
        process: Run a synchronous function in a worker process, which is killed where the call takes too long. It has
            to stand at the top of a module; arguments and results cross as JSON.
        endpoint: What the tool depends on, such as a server's address: breakers and limits are kept for each.
    """

    if function is not None:
        return FunctionTool(function, **options)
    return functools.partial(FunctionTool, **options)


def is_async(function: Callable[..., Any]) -> bool:
    """True for coroutine functions, also behind functools.partial and for objects with an async `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - its method, not whether there is one
    )


def build() -> Run:
    """What answers calls of tools in a worker process. A request's `target` is the tool's `module:attribute`; without
    `arguments` it is only imported."""
    make_all_prints_visible()
    run = functools.cache(_run_of)

    def answer(request: Mapping[str, Any]) -> dict[str, Any]:
        work = run(request["target"])
        return {"result": work(request["arguments"])} if "arguments" in request else {"ready": True}

    return answer


def _run_of(target: str) -> Run:
    module, _, attribute = target.partition(":")
    found: Any = operator.attrgetter(attribute)(importlib.import_module(module))
    return (found if isinstance(found, FunctionTool) else FunctionTool(found)).run_here
