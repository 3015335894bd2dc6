"""Makes a `Toolset` of what a component's target gives.

A target may be a `@tool` function, a `Tool` class or object, a `Toolset` class or object, a list of these, or a
factory: a function or class called as `target(options, context)` that returns one of them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

from toolrl.errors import ComponentLoadError, ConfigError, ToolrlError
from toolrl.protocols import BuildContext, EpisodeContext, Reply, RewritesHistory, StartsAndStops, ToolSession, Toolset
from toolrl.tools.callables import parameters_of
from toolrl.tools.function import FunctionTool, is_async
from toolrl.tools.lifecycle import LifecycleToolset, Tool
from toolrl.tools.traits import ToolTraits
from toolrl.types import Message, Task, ToolCall, ToolResult, ToolSpec, Turn

STOP_SECONDS = 60.0
"""How long a toolset, or a reward, may take to stop before the run ends without it."""

_log = logging.getLogger(__name__)


def as_toolset(target: Any, options: Any, context: BuildContext) -> Toolset:
    """The toolset of a component's resolved target. Raises ComponentLoadError or ConfigError."""
    if isinstance(target, FunctionTool | list | tuple) or _is_object(target):
        if options is not None and options != {}:
            raise ConfigError(
                f"tool {context.name!r} is {_describe(target)}, which takes no options",
                where=context.where or None,
                hint="Leave `options` out, or make the target a Tool class or a factory(options, context).",
            )
        return _wrap(target, context)
    if not callable(target) or (inspect.isroutine(target) and not _is_factory(target)):
        raise _expected(target, context)
    try:
        made = target(options, context)
    except ToolrlError:
        raise
    except Exception as error:
        raise ComponentLoadError(
            f"tool {context.name!r}: {_describe(target)} raised when it was built: {type(error).__name__}: {error}",
            where=context.where or None,
            hint=_unmarked(target),
        ) from error
    return _wrap(made, context, hint=_unmarked(target))


class FunctionToolset(Toolset):
    """A `@tool` function. Stateless: opening it costs next to nothing."""

    def __init__(self, tool: FunctionTool) -> None:
        self.tool = tool

    def names(self) -> Sequence[str]:
        return (self.tool.name,)

    def traits(self, name: str) -> ToolTraits:
        return self.tool.traits

    def open(self, task: Task, episode: EpisodeContext) -> AbstractAsyncContextManager[ToolSession]:
        return nullcontext(_FunctionSession(self.tool, episode))


class _FunctionSession(ToolSession):
    """A function in one episode."""

    def __init__(self, tool: FunctionTool, episode: EpisodeContext) -> None:
        self._tool = tool
        self._episode = episode

    def specs(self) -> Sequence[ToolSpec]:
        return (self._tool.spec,)

    def traits(self, name: str) -> ToolTraits:
        return self._tool.traits

    async def call(self, call: ToolCall) -> ToolResult:
        return await self._tool.run(call.arguments, self._episode)


def function_tools(toolset: Any) -> list[FunctionTool]:
    """The `@tool` functions of a toolset; none for other kinds of toolset."""
    if isinstance(toolset, FunctionToolset):
        return [toolset.tool]
    members = toolset.members if isinstance(toolset, JoinedToolset) else ()
    return [tool for member in members for tool in function_tools(member)]


class JoinedToolset:
    """Several toolsets of one component, in order."""

    def __init__(self, members: Sequence[Toolset]) -> None:
        self.members = members
        self._started: list[Toolset] = []

    def names(self) -> Sequence[str] | None:
        names: list[str] = []
        for member in self.members:
            known = tool_names(member)
            if known is None:
                return None
            names.extend(known)
        return names

    def traits(self, name: str) -> ToolTraits:
        found = (known_traits(member).get(name) for member in self.members)
        return next((traits for traits in found if traits is not None), ToolTraits())

    async def start(self) -> None:
        for member in self.members:
            self._started.append(member)
            await member.start()

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        async with AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(member.open(task, episode))
                for member in self.members
                if is_wanted(member, task)
            ]
            yield _JoinedSession(sessions)

    async def stop(self) -> None:
        started, self._started = self._started, []
        await stop_all(started)


class _JoinedSession:
    """Calls go to the member that has the tool; rewards add up."""

    def __init__(self, sessions: Sequence[ToolSession]) -> None:
        self.members = sessions
        self._by_name = {spec.name: session for session in sessions for spec in session.specs()}

    def specs(self) -> Sequence[ToolSpec]:
        return tuple(spec for session in self.members for spec in session.specs())

    def traits(self, name: str) -> ToolTraits:
        return traits_of(self._by_name[name], name)

    def resolve(self, name: str) -> str | None:
        meant = [found for session in self.members if (found := meaning_of(session, name)) is not None]
        return meant[0] if len(meant) == 1 else None

    async def opening(self) -> Sequence[Message]:
        return [message for session in self.members for message in await opening_of(session)]

    async def call(self, call: ToolCall) -> ToolResult:
        return await self._by_name[call.name].call(call)

    async def reward(self) -> float | None:
        values = [value for session in self.members if (value := await session.reward()) is not None]
        return sum(values) if values else None

    async def respond(self, turn: Turn) -> Reply | None:
        for session in self.members:
            reply = await respond_of(session, turn)
            if reply is not None:
                return reply
        return None


def tool_names(toolset: Toolset) -> Sequence[str] | None:
    """The toolset's tools where it knows them without an episode (its optional `names()`), else None."""
    names = getattr(toolset, "names", None)
    return names() if names is not None else None


def known_traits(toolset: Toolset) -> dict[str, ToolTraits]:
    """The traits of the toolset's tools by name, where it knows them without an episode (its optional `traits(name)`);
    else nothing."""
    traits = getattr(toolset, "traits", None)
    return {name: traits(name) for name in tool_names(toolset) or ()} if traits is not None else {}


def is_wanted(toolset: Toolset, task: Task) -> bool:
    """False where the task's selection takes none of the toolset's tools, so that it needn't be opened."""
    names = tool_names(toolset) if task.tools is not None else None
    return not names or any(name in names for name in task.tools or ())


def traits_of(session: ToolSession, name: str) -> ToolTraits:
    """The traits of a session's tool; the default where it gives none."""
    traits = getattr(session, "traits", None)
    return traits(name) if traits is not None else ToolTraits()


def meaning_of(session: ToolSession, name: str) -> str | None:
    """The tool that a session knows by another name, such as a short one; None where it knows none."""
    resolve = getattr(session, "resolve", None)
    try:
        return resolve(name) if resolve is not None else None
    except Exception:  # noqa: BLE001 - the call is answered all the same, as one of an unknown tool
        _log.exception("%s: resolve(%.80r) raised", type(session).__name__, name)
        return None


async def opening_of(session: ToolSession) -> Sequence[Message]:
    """The session's opening messages; none where it is no environment."""
    opening = getattr(session, "opening", None)
    return _messages("opening()", await opening()) if opening is not None else ()


async def respond_of(session: ToolSession, turn: Turn) -> Reply | None:
    """The session's reply to a turn without a call; None where it is no environment."""
    respond = getattr(session, "respond", None)
    reply = await respond(turn) if respond is not None else None
    if reply is None:
        return None
    if not isinstance(reply, Reply):
        raise TypeError(f"respond() gave {reply!r:.80}, expected a toolrl.protocols.Reply or None")
    return replace(reply, messages=_messages("respond()", reply.messages))


def rewriters_of(session: ToolSession) -> list[RewritesHistory]:
    """What of a session may rewrite the history: itself, or members of a list."""
    if isinstance(session, _JoinedSession):
        return [found for member in session.members for found in rewriters_of(member)]
    return [session] if isinstance(session, RewritesHistory) else []


async def rewrite_of(
    session: RewritesHistory, messages: Sequence[Message], tools: Sequence[ToolSpec], tokens: int, limit: int
) -> tuple[Message, ...] | None:
    """See `RewritesHistory`. Raises TypeError or ValueError for messages after which there can't be a turn."""
    given = await session.rewrite(messages, tools, tokens, limit)
    if given is None:
        return None
    history = _messages("rewrite()", given)
    if not history or history[-1].role not in ("user", "tool"):
        last = f"one of role {history[-1].role!r}" if history else "none"
        raise ValueError(f"the last message of rewrite() is {last}, expected one of role 'user' or 'tool'")
    for before, message in pairwise((Message("user"), *history)):
        if message.role == "tool" and before.role not in ("assistant", "tool"):
            answer = f"the tool message {message.content!r:.80} without the turn whose call it answers"
            raise ValueError(f"rewrite() gave {answer}; keep both, or drop both")
    return history


def _messages(what: str, given: Any) -> tuple[Message, ...]:
    """Raises TypeError for anything but messages."""
    messages = tuple(given) if isinstance(given, Iterable) else None
    if messages is None or not all(isinstance(message, Message) for message in messages):
        raise TypeError(f"{what} gave {given!r:.80} for its messages, expected a list of toolrl.types.Message")
    return messages


async def stop_all(toolsets: Sequence[Toolset]) -> None:
    """Stop each, last started first, also after one raised; then raise what was raised."""
    async with AsyncExitStack() as stack:
        for toolset in toolsets:
            stack.push_async_callback(stop_in_time, toolset)


async def stop_in_time(component: StartsAndStops) -> None:
    """Stop it within STOP_SECONDS. In the same task: what it entered in `start` may have to be left there, such as a
    task group."""
    try:
        async with asyncio.timeout(STOP_SECONDS) as limit:
            await component.stop()
    except TimeoutError:
        if not limit.expired():
            raise
        _log.warning("%s didn't stop within %g s; it is left as it is", type(component).__name__, STOP_SECONDS)


def _wrap(made: Any, context: BuildContext, hint: str | None = None) -> Toolset:
    if isinstance(made, FunctionTool):
        return FunctionToolset(made)
    if isinstance(made, list | tuple):
        return JoinedToolset([_wrap(item(None, context) if isinstance(item, type) else item, context) for item in made])
    if isinstance(made, Tool):
        try:
            return LifecycleToolset(made)
        except (TypeError, ValueError) as error:
            raise ComponentLoadError(str(error), where=context.where or None) from error
    if _is_object(made):
        toolset: Toolset = made
        return toolset
    raise _expected(made, context, hint)


def _expected(given: Any, context: BuildContext, hint: str | None = None) -> ComponentLoadError:
    return ComponentLoadError(
        f"tool {context.name!r}: got {_describe(given)}, expected a @tool function, a Tool, a Toolset with start, open "
        "and stop, a list of these, or a factory(options, context)",
        where=context.where or None,
        hint=hint or _unmarked(given),
    )


def is_tool_function(target: Any) -> bool:
    """True for what `tool()` makes a tool of, without a mark: a function, a method, a functools.partial, or an object
    with `__call__`. A factory of toolsets names its parameters `options` and `context`."""
    if isinstance(target, type | FunctionTool | list | tuple) or _is_object(target) or not callable(target):
        return False
    try:
        return list(parameters_of(target)) != ["options", "context"]
    except ValueError:  # one of C, without a signature
        return False


def _is_factory(function: Any) -> bool:
    """False for a function that can't be called as `factory(options, context)`."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # one of C, without a signature
        return True
    return not is_async(function)


def _unmarked(target: Any) -> str | None:
    """What to do about a function or an object that was meant to be a tool."""
    if not inspect.isroutine(target):
        made = target if isinstance(target, type) else type(target)
        return f"Derive {made.__name__} from `toolrl.tools.Tool`." if hasattr(made, "execute") else None
    return f"If {target.__name__!r} is the tool itself, put @tool above it: `from toolrl.tools import tool`."


def _is_object(value: Any) -> bool:
    if isinstance(value, type):
        return False
    return isinstance(value, Tool) or all(callable(getattr(value, name, None)) for name in ("start", "open", "stop"))


def _describe(value: Any) -> str:
    if isinstance(value, FunctionTool):
        return f"the @tool function {value.name!r}"
    if inspect.isroutine(value):
        return f"the function {value.__name__!r}"
    if isinstance(value, type):
        return f"the class {value.__qualname__!r}"
    return f"{type(value).__name__} {value!r:.80}"
