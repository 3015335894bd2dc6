"""Contracts of tools: specs, answers, episodes that don't see each other, release on every path."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import jsonschema

from toolrl.protocols import Toolset
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolBoxSession, ToolEntry
from toolrl.tools.traits import check_tool_name
from toolrl.tools.truncate import token_cut
from toolrl.tools.validation import compile_schema
from toolrl.types import CallRecord, Task, ToolCall, ToolSpec
from toolrl_testing.checks import fail, require
from toolrl_testing.fakes import FakeChatFormat, make_episode_context

_T = TypeVar("_T")

Calls = Mapping[str, Sequence[Mapping[str, Any]]]
"""Tool name to arguments of calls that succeed."""
Build = Callable[[], Toolset]
"""Makes the toolset anew."""


async def check_specs(build: Build, task: Task | None = None) -> None:
    """Each tool has a name and a description, and parameters that are a JSON Schema."""
    async with session_of(build, task) as session:
        for spec in session.specs():
            check_spec(spec)


def check_spec(spec: ToolSpec) -> None:
    """One spec is sound."""
    try:
        check_tool_name(spec.name)
    except ValueError as error:
        fail(str(error))
    require(spec.description.strip(), f"tool {spec.name!r} has no description: the model can't know what it is for")
    try:
        json.dumps(spec.as_function())
    except (TypeError, ValueError) as error:
        fail(f"tool {spec.name!r}: its spec isn't JSON: {error}")
    try:
        compile_schema(spec.parameters)
    except jsonschema.SchemaError as error:
        fail(f"tool {spec.name!r}: its parameters are no JSON Schema: {error.message}")
    require(spec.parameters.get("type") == "object", f"tool {spec.name!r}: its parameters have to be of type object")
    known = spec.parameters.get("properties") or {}
    for name in spec.parameters.get("required") or ():
        require(name in known, f"tool {spec.name!r}: requires {name!r}, which isn't among its properties")


async def check_calls(build: Build, calls: Calls, task: Task | None = None) -> None:
    """The example calls succeed, and every tool has one."""
    async with session_of(build, task) as session:
        missing = [spec.name for spec in session.specs() if not calls.get(spec.name)]
        require(not missing, f"no example call for {', '.join(missing)}: add one to `tool_calls`")
        for record in await session.answer(_items(calls, session)):
            require(
                record.result.error is None,
                f"{_shown(record)} should succeed, and answered {record.result.text!r} ({record.result.error})"
                + "".join(failure.traceback for failure in session.failures),
            )


async def check_odd_arguments(build: Build, calls: Calls, task: Task | None = None) -> None:
    """Whatever a model sends is answered: nonsense as bad arguments, odd values that the schema allows without a
    crash."""
    async with session_of(build, task) as session:
        for spec in session.specs():
            examples = calls.get(spec.name) or [{}]
            for arguments in (*_nonsense(spec), *_odd(spec, examples[0])):
                (record,) = await session.answer([ToolCall(spec.name, arguments)])
                require(
                    record.result.error not in ("crash", "timeout"),
                    f"{_shown(record)} ended in a {record.result.error}: {record.result.text}\nRaise ToolError or "
                    "ArgumentsError for what the model should read.\n"
                    + "".join(failure.traceback for failure in session.failures),
                )


async def check_isolation(build: Build, calls: Calls, *, same_answers: bool = True, task: Task | None = None) -> None:
    """Episodes at once on one object answer as one alone does. Where answers depend on time or chance, leave
    `same_answers` off; then only success is compared."""
    async with _started(build()) as box:

        async def episode(number: int) -> list[tuple[str, str]]:
            context = replace(make_episode_context(task), episode_id=f"episode-{number}")
            answers = []
            async with box.open(context.task, context) as session:
                for item in _items(calls, session):
                    (record,) = await session.answer([item])
                    result = record.result
                    answers.append((_shown(record), result.text if same_answers else str(result.error)))
                    await asyncio.sleep(0)
            return answers

        alone = await episode(0)
        together = await asyncio.gather(*(episode(number) for number in range(1, 9)))
    for answers in together:
        for (call, expected), (_, got) in zip(alone, answers, strict=True):
            require(
                got == expected,
                f"{call} answers {expected!r} in an episode by itself and {got!r} beside others: state is shared "
                "between episodes. Keep it by instance_id, or in the session.",
            )


async def check_release(build: Build, calls: Calls, task: Task | None = None) -> None:
    """After episodes that end well, fail, or are cancelled in a call, nothing of them is left: no asyncio task, no
    thread of their own."""
    before = asyncio.all_tasks()
    async with _started(build()) as box:
        running = asyncio.all_tasks()
        for _ in range(3):
            await _end_in_every_way(box, calls, task)
        threads = threading.active_count()
        for _ in range(5):
            await _end_in_every_way(box, calls, task)
        left = await _lasting(lambda: list(asyncio.all_tasks() - running))
        require(not left, f"asyncio tasks are left after their episodes ended: {left}")
        more = threading.active_count() - threads
        require(more < 5, f"{more} more threads run after 5 rounds of episodes than before")
    left = await _lasting(lambda: list(asyncio.all_tasks() - before))
    require(not left, f"asyncio tasks are left after stop(): {left}")


async def _lasting(look: Callable[[], list[_T]]) -> list[_T]:
    """The items that stay for two seconds, as a tool may tidy up after the episode."""
    for _ in range(100):
        if not look():
            break
        await asyncio.sleep(0.02)
    return look()


async def _end_in_every_way(box: ToolBox, calls: Calls, task: Task | None) -> None:
    async def episode(*, fails: bool = False) -> None:
        context = make_episode_context(task)
        async with box.open(context.task, context) as session:
            items = _items(calls, session)
            await session.answer(items)
            for item in items:
                await session.answer([item, item])
            await session.rewards()
            if fails:
                raise _EpisodeError

    await episode()
    with suppress(_EpisodeError):
        await episode(fails=True)
    for ticks in (0, 1, 3, 8):
        running = asyncio.create_task(episode())
        for _ in range(ticks):
            await asyncio.sleep(0)
        running.cancel()
        (done,) = await asyncio.gather(running, return_exceptions=True)
        ok = done is None or isinstance(done, asyncio.CancelledError)
        require(ok, f"an episode that was cancelled in a call ended with {done!r}")
    await episode()


class _EpisodeError(Exception):
    """The error of an episode that fails."""


@asynccontextmanager
async def _started(toolset: Toolset) -> AsyncIterator[ToolBox]:
    box = ToolBox([ToolEntry("tool", toolset, policy=PolicyOptions())], cut=token_cut(FakeChatFormat()))
    await box.start()
    try:
        yield box
    finally:
        await box.stop()


@asynccontextmanager
async def session_of(build: Build, task: Task | None) -> AsyncIterator[ToolBoxSession]:
    """A session of one started toolset."""
    context = make_episode_context(task)
    async with _started(build()) as box, box.open(context.task, context) as session:
        yield session


def _items(calls: Calls, session: ToolBoxSession) -> list[ToolCall]:
    """The example calls of the session's tools."""
    names = [spec.name for spec in session.specs()]
    return [ToolCall(name, dict(arguments)) for name in names for arguments in calls.get(name, ())]


def _nonsense(spec: ToolSpec) -> list[dict[str, Any]]:
    names = list(spec.parameters.get("properties") or {})
    values: list[Any] = [None, True, -1, 10**30, 1e308, "", "\x00", "é" * 2000, [], [[[]]], {"a": {"b": [None]}}]
    return [{}, {"no such argument": 1}, *(dict.fromkeys(names, value) for value in values)]


def _odd(spec: ToolSpec, example: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The example with one argument replaced by an unusual value of its type."""
    by_type: dict[str, list[Any]] = {
        "string": ["", " ", "\n", "\x00", "' \"\\", "é🙂", "x" * 20_000, "0"],
        "integer": [0, -1, 10**9],
        "number": [0.0, -1.5, 1e300],
        "boolean": [True, False],
        "array": [[]],
        "object": [{}],
    }
    odd: list[dict[str, Any]] = []
    for name, schema in (spec.parameters.get("properties") or {}).items():
        kinds = schema.get("type", ())
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            odd.extend({**example, name: value} for value in by_type.get(kind, ()))
    return odd


def _shown(record: CallRecord) -> str:
    call = record.call
    return f"{call.name}({dict(call.arguments)!r:.200})" if isinstance(call, ToolCall) else str(call)
