"""The tools of one environment: several toolsets joined, and what one episode sees of them.

    tools = ToolBox([ToolEntry("calculator", toolset)], cut=token_cut(chat_format))
    await tools.start()
    async with tools.open(task, episode) as session:
        records = await session.answer(turn_items)
    await tools.stop()

Every item of a turn is answered, in order: a call to an unknown tool, one that couldn't be read, one that crashed. What
fails outside of a call can't be answered to the model and ends the episode as `ToolsetError`.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from toolrl.errors import ConfigError, DataError, ToolsetError
from toolrl.protocols import EpisodeContext, Reply, Toolset
from toolrl.tools.cancellation import end_strays
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.loop_watch import watching
from toolrl.tools.policy import CallPolicy, Invocation, ToolFailure
from toolrl.tools.process_tools import PROCESSES
from toolrl.tools.threads import POOL
from toolrl.tools.tool_session import OpenSession, ToolEntry, blamed
from toolrl.tools.toolset import (
    is_wanted,
    known_traits,
    meaning_of,
    opening_of,
    respond_of,
    rewriters_of,
    stop_all,
    tool_names,
)
from toolrl.tools.traits import ToolTraits
from toolrl.tools.truncate import Cut
from toolrl.tools.validation import arguments_form
from toolrl.tools.values import as_number
from toolrl.types import (
    CallError,
    CallRecord,
    Message,
    RewardEntry,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)

__all__ = ["ToolBox", "ToolBoxSession", "ToolEntry"]

_log = logging.getLogger(__name__)
_LONGEST_NAME = 64
"""Characters of an unknown tool's name that are repeated to the model; no tool's name is longer."""


class ToolBox:
    """All tools of an environment. One object a process; `start` before the first episode, `stop` after the last."""

    def __init__(
        self,
        entries: Sequence[ToolEntry],
        *,
        cut: Cut | None = None,
        hide: Callable[[str], str] = str,
        endpoints: Endpoints | None = None,
    ) -> None:
        """`cut` shortens results by tokens; without one they stay whole. `hide` takes secrets out of errors: those of
        libraries often hold an address with its key. `endpoints` holds the breakers and limits that this box shares
        with others. Raises ConfigError for names that clash."""
        self._hide = hide
        self._entries = tuple(entries)
        shared = endpoints if endpoints is not None else Endpoints()
        self._policies = tuple(
            CallPolicy(entry.policy, cut, name=entry.name, endpoints=shared) for entry in self._entries
        )
        self._started: list[Toolset] = []
        self._crashed: set[str] = set()
        self._unnamed = {index for index, it in enumerate(self._entries) if it.rename or it.markers}
        """The entries whose names of tools are looked for in the first session, if they aren't known before."""
        self.sessions: Callable[..., ToolBoxSession] = ToolBoxSession
        self._check_names()

    async def start(self) -> None:
        """Start every toolset; where one fails, those before it are stopped again."""
        try:
            for entry in self._entries:
                self._started.append(entry.toolset)
                await blamed(entry.name, "didn't start", entry.toolset.start)
            self._check_names()  # Some know their tools only now.
            for entry, policy in zip(self._entries, self._policies, strict=True):
                await policy.prepare(known_traits(entry.toolset))
        except BaseException:
            try:
                await self.stop()
            except Exception:  # noqa: BLE001 - what went wrong first is what has to be mended
                _log.exception("tools that were started couldn't be stopped again")
            raise

    async def stop(self) -> None:
        """Stop what was started, last first, each also if another one raised."""
        started, self._started = self._started, []
        try:
            await stop_all(started)
        finally:
            if endless := await end_strays():
                _log.warning("%d tool calls or stages never ended, although they were cancelled twice", endless)
            # Those of other boxes that are idle now go too; they come back when they are needed.
            POOL.close_idle()
            PROCESSES.close_idle()

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[ToolBoxSession]:
        """The tools of one episode. Leaving it closes every session, on every path.

        Raises ToolsetError where a session doesn't open, DataError where the task selects a tool that isn't there.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(watching())  # Also where there is no rollout around it.
            opened: list[OpenSession] = []
            left_out: list[str] = []
            for entry, policy in zip(self._entries, self._policies, strict=True):
                own_task = _own_view(task, entry.rename)
                if not is_wanted(entry.toolset, own_task):
                    left_out.extend(entry.rename.get(name, name) for name in tool_names(entry.toolset) or ())
                    continue
                own_episode = episode if own_task is task else replace(episode, task=own_task)
                begin = functools.partial(entry.toolset.open, own_task, own_episode)
                one = await stack.enter_async_context(OpenSession(entry, policy, begin))
                await policy.prepare(one.traits)
                self._check_session(entry, one)
                opened.append(one)
            session = self.sessions(opened, task, left_out, episode=episode.episode_id, hide=self._hide)
            try:
                yield session
            finally:
                self._log_crashes(session.failures)

    def _check_session(self, entry: ToolEntry, opened: OpenSession) -> None:
        """Say once which names in `as` and `markers` no tool has, for a set whose tools are known in the episode: its
        other episodes may have others."""
        index = next(index for index, other in enumerate(self._entries) if other is entry)
        if index not in self._unnamed or tool_names(entry.toolset) is not None:
            return
        self._unnamed.discard(index)
        names = [spec.name for spec in opened.specs]
        shown = [entry.rename.get(name, name) for name in names]
        for field, given, there in (("as", entry.rename, names), ("markers", entry.markers, shown)):
            if idle := [name for name in given if name not in there]:
                _log.warning(
                    "tool %r: `%s` names %s, which no tool of the first episode is called; there is %s",
                    entry.name, field, ", ".join(map(repr, idle)), ", ".join(there) or "none",
                )  # fmt: skip

    def _log_crashes(self, failures: Sequence[ToolFailure]) -> None:
        """Log the traceback of each tool's first crash, for its author; a thousand episodes would print a thousand."""
        for failure in failures:
            if failure.tool not in self._crashed:
                self._crashed.add(failure.tool)
                _log.error(
                    "tool %r crashed: %s; the model reads it, later crashes are only counted (calls/error/crash)\n%s",
                    failure.tool,
                    self._hide(failure.message),
                    self._hide(failure.traceback),
                )

    def _check_names(self) -> None:
        owners: dict[str, str] = {}
        for entry in self._entries:
            names = tool_names(entry.toolset)
            if names is None:
                continue
            shown = [entry.rename.get(name, name) for name in names]
            renamed, marked = ("`as` renames", entry.rename, names), ("`markers` are for", entry.markers, shown)
            for what, given, there in (renamed, marked):
                for name in given:
                    if name not in there:
                        told = f"{what} {name!r}, and it has no such tool; it has {', '.join(there)}"
                        raise ConfigError(f"tool {entry.name!r}: {told}")
            for name in shown:
                _claim(owners, name, entry.name)


@dataclass(slots=True)
class _Bound:
    """A tool that the model can call in this episode."""

    opened: OpenSession
    spec: ToolSpec
    """Under its own name."""
    traits: ToolTraits
    kwargs: Mapping[str, Any]
    """What the task gives it."""


class ToolBoxSession:
    """What one episode sees: specs, answers, opening messages, replies, rewards."""

    def __init__(
        self,
        opened: Sequence[OpenSession],
        task: Task,
        left_out: Sequence[str] = (),
        *,
        episode: str = "",
        hide: Callable[[str], str] = str,
    ) -> None:
        """`left_out` are tools whose sets weren't opened, because the task doesn't select them; `episode` is its id."""
        self._hide = hide
        self._episode = episode
        self.failures: list[ToolFailure] = []
        """Crashes so far, in order of occurrence."""
        self._tools: dict[str, _Bound] = {}
        specs: list[ToolSpec] = []
        active: list[OpenSession] = []
        owners: dict[str, str] = {}
        for item in opened:
            taken = 0
            for spec in item.specs:
                shown = item.entry.rename.get(spec.name, spec.name)
                _claim(owners, shown, item.entry.name)
                if task.tools is None or shown in task.tools:
                    taken += 1
                    kwargs = task.tools_kwargs.get(shown) or {}
                    self._tools[shown] = _Bound(item, spec, item.traits[spec.name], kwargs)
                    markers = item.entry.markers.get(shown, spec.markers)
                    same = shown == spec.name and markers is spec.markers
                    specs.append(spec if same else replace(spec, name=shown, markers=markers))
            if taken or not item.specs:
                active.append(item)
            if item.entry.rewrites and not rewriters_of(item.session):
                raise ToolsetError("it is under `history`, and its sessions have no rewrite()", where=item.entry.name)
        self._specs = tuple(specs)
        self._active = tuple(active)
        self.rewriters = tuple([(item, it) for item in active for it in rewriters_of(item.session)])
        """Sessions that may rewrite the history, with their toolsets'."""
        self._check_selection(task, [*owners, *left_out])

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools of this episode, under the names the model knows."""
        return self._specs

    async def opening(self) -> list[Message]:
        """Messages of the environment before the first turn, in the order of its toolsets."""
        messages: list[Message] = []
        for item in self._active:
            messages.extend(await item.ask("opening messages", functools.partial(opening_of, item.session)))
        return messages

    async def respond(self, turn: Turn) -> Reply | None:
        """The first reply that a toolset has to a turn without a call, or None."""
        for item in self._active:
            reply = await item.ask("reply", functools.partial(respond_of, item.session, turn))
            if reply is not None:
                reward = None if reply.reward is None else _finite(reply.reward, item.entry.name)
                return replace(reply, reward=reward, done=bool(reply.done))
        return None

    async def answer(self, items: Sequence[ToolCall | CallError], *, started: float = 0.0) -> tuple[CallRecord, ...]:
        """Answer a turn's items, in parallel, results in their order. `started` is when, in seconds since the episode
        began. Raises only CancelledError."""
        zero = time.perf_counter() - started
        for opened in self._active:
            opened.budget.next_turn()
        refused = [self._over_budget(item) for item in items]
        async with asyncio.TaskGroup() as scope:
            tasks = [scope.create_task(self._record(*pair, zero)) for pair in zip(items, refused, strict=True)]
        return tuple(task.result() for task in tasks)

    async def rewards(self) -> list[RewardEntry]:
        """The toolsets' own rewards, those that have one. Asked once, after the last turn. Raises ToolsetError."""
        entries: list[RewardEntry] = []
        for item in self._active:
            value = await item.ask("reward", item.session.reward)
            if value is not None:
                value = _finite(value, item.entry.name)
                entries.append(RewardEntry(None, f"tool:{item.shown_name}", value, item.entry.weight))
        return entries

    def _over_budget(self, item: ToolCall | CallError) -> ToolResult | None:
        """The answer to a call that is one too many, else None."""
        tool = self._find(item.name) if isinstance(item, ToolCall) else None
        return tool.opened.budget.take() if tool is not None else None

    def _find(self, name: str) -> _Bound | None:
        """The tool of this name, or the only one that its session knows by it."""
        if name in self._tools:
            return self._tools[name]
        meant = [tool for tool in self._tools.values() if meaning_of(tool.opened.session, name) == tool.spec.name]
        return meant[0] if len(meant) == 1 else None

    async def _record(self, item: ToolCall | CallError, refusal: ToolResult | None, zero: float) -> CallRecord:
        begin = time.perf_counter()
        if refusal is not None:
            result = refusal
        elif isinstance(item, CallError):
            result = ToolResult(self._malformed(item), error="malformed")
        elif (tool := self._find(item.name)) is not None:
            result = await self._call(tool, item)
        else:
            result = ToolResult(self._unknown(item.name), error="unknown_tool")
        if result.error is not None:
            result = replace(result, text=self._hide(result.text))
        return CallRecord(item, result, begin - zero, time.perf_counter() - begin)

    async def _call(self, tool: _Bound, call: ToolCall) -> ToolResult:
        own = call if call.name == tool.spec.name else replace(call, name=tool.spec.name)
        policy = tool.opened.policy
        invocation = Invocation(
            own,
            call.name,
            tool.spec,
            tool.opened.session,
            tool.traits,
            self.failures,
            endpoint=policy.endpoint(tool.traits),
            kwargs=tool.kwargs,
            episode=self._episode,
            hide=self._hide,
        )
        result = await policy.answer(invocation)
        if not invocation.effort and not result.metrics:
            return result
        effort = {f"policy/{name}": amount for name, amount in invocation.effort.items()}
        named = {self._hide(own_metric(name, "policy/")): value for name, value in result.metrics.items()}
        return replace(result, metrics={**named, **effort})

    def _malformed(self, error: CallError) -> str:
        tool = self._find(error.name) if error.name is not None else None
        if tool is None:
            return error.message or "This tool call couldn't be read."
        return f"{error.message} Arguments of {error.name!r}: {arguments_form(tool.spec)}"

    def _unknown(self, name: str) -> str:
        if len(name) > _LONGEST_NAME:  # It may be the rest of the turn.
            name = f"{name[:_LONGEST_NAME]}…"
        if not self._tools:
            return f"There is no tool {name!r}: no tools are available here. Answer without one."
        near = difflib.get_close_matches(name, self._tools, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"There is no tool {name!r}.{hint} Available tools: {', '.join(self._tools)}."

    def _check_selection(self, task: Task, there: Sequence[str]) -> None:
        unknown = [name for name in task.tools or () if name not in self._tools]
        if unknown:
            raise DataError(
                f"task {task.id!r} selects the tool {unknown[0]!r}, which its environment doesn't have. "
                f"It has: {', '.join(there) or 'none'}",
                hint="Change the task's `tools`, or add the tool to the environment.",
            )


def _own_view(task: Task, rename: Mapping[str, str]) -> Task:
    """The task as a toolset sees it: its tools under their own names."""
    if not rename:
        return task
    tools = task.tools
    if tools is not None:
        old_names = {new: old for old, new in rename.items()}
        tools = tuple(old_names.get(name, name) for name in tools if name in old_names or name not in rename)
    kwargs = {name: value for name, value in task.tools_kwargs.items() if name not in rename}
    kwargs.update({old: task.tools_kwargs[new] for old, new in rename.items() if new in task.tools_kwargs})
    return replace(task, tools=tools, tools_kwargs=kwargs)


def _claim(owners: dict[str, str], name: str, owner: str) -> None:
    if name in owners:
        raise ConfigError(
            f"two tools are called {name!r}: one of {owners[name]!r}, one of {owner!r}",
            hint=f"Rename one in the config: {{use: {owner}, as: {{{name}: another_name}}}}",
        )
    owners[name] = owner


def own_metric(name: str, *reserved: str) -> str:
    """A component's own name of a metric; one that begins with a reserved word goes under `own/`, where it can't meet
    the metric that toolrl gives under this name."""
    return f"own/{name}" if name.startswith((*reserved, "own/")) else name


def _finite(value: Any, name: str) -> float:
    try:
        number = as_number(value)
    except TypeError:
        raise ToolsetError(f"its reward is {value!r:.80}, expected a number", where=name) from None
    if not math.isfinite(number):
        raise ToolsetError(f"its reward is {number}, which is no finite number", where=name)
    return number
