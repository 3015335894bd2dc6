"""`Tool`: a tool with state, in four stages.

    create(instance_id, **create_kwargs)                 once an episode
    execute(instance_id, parameters, **execute_kwargs)   once a call
    calc_reward(instance_id, **calc_reward_kwargs)       once, after the last call, on every path
    release(instance_id, **release_kwargs)               once, last, on every path

One tool object serves all episodes of a process; `instance_id` tells them apart. The four kwargs come from the task's
`tools_kwargs[<tool name>]`, over those of the tool's options; `parameters` come from the model alone. Any stage may be
`async` or not; one that isn't runs in a thread. A stage with a parameter of type EpisodeContext gets the episode's.

Every path means: an episode that ends well, fails, is cancelled, or is cut off as the run ends. Where the reward wasn't
asked for, `calc_reward` runs right before `release` and its value is dropped. Where `create` raised there is no
instance to reward, and only `release` runs.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import typing
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

from pydantic import BaseModel

from toolrl.errors import ToolsetError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession, Toolset
from toolrl.tools.callables import context_parameter, resolved_hints
from toolrl.tools.cancellation import Watch, uninterrupted
from toolrl.tools.function import is_async
from toolrl.tools.loop_watch import run_stoppable
from toolrl.tools.results import as_result
from toolrl.tools.schema import model_schema, validated
from toolrl.tools.threads import POOL, Job, Lane
from toolrl.tools.traits import ToolTraits, check_tool_name
from toolrl.types import Message, Task, ToolCall, ToolResult, ToolSpec

STAGES = ("create", "execute", "calc_reward", "release")
RELEASE_SECONDS = 30.0
"""How long a release may take, and how long it waits for threads of the instance that are still running."""

_log = logging.getLogger(__name__)


class Tool(ABC):
    """Base of tools with state. Override `execute`, and of the other stages those that the tool needs.

    What the model reads is the class attribute `spec`, or is made of `name`, the class's docstring, and the pydantic
    model that `execute` has as hint of `parameters`; then `parameters` arrive as an instance of it.
    """

    spec: ToolSpec | None = None
    """What the model reads. `ToolSpec.from_function` reads the OpenAI form. May be set in `__init__`."""
    name: ClassVar[str] = ""
    """The tool's name where there is no `spec`."""
    pure: ClassVar[bool] = False
    """The same arguments give the same answer, for the same create_kwargs and execute_kwargs: the config's
    `policy.cache` may keep answers."""
    idempotent: ClassVar[bool] = False
    """Calling twice does no more than calling once, so that a call which timed out may be made again."""
    endpoint: str | None = None
    """What the tool depends on, such as a server's address: breakers and limits are kept for each. May be set in
    `__init__`; None for the name that the config calls the tool."""
    timeout: ClassVar[float | None] = None
    """Seconds a call may take, unless the config sets it."""

    def __init__(self, options: Any = None, context: BuildContext | None = None) -> None:
        self.options = options
        self.context = context

    def create(self, instance_id: str, **create_kwargs: Any) -> Any:
        """Prepare an episode. May return a text, a Message or several: what the model sees before its first turn."""
        return None

    @abstractmethod
    def execute(self, instance_id: str, parameters: Any, **execute_kwargs: Any) -> Any:
        """Answer one call. Returns what a `@tool` function may return; raises ToolError for the model to read."""

    def calc_reward(self, instance_id: str, **calc_reward_kwargs: Any) -> Any:
        """The tool's own reward for the episode, or None. Called once for every create that succeeded, also where the
        episode failed and its reward isn't used."""
        return None

    def release(self, instance_id: str, **release_kwargs: Any) -> Any:
        """Let go of what the episode holds. Called once for every create that began, also where it raised or was
        cancelled: an instance may be half made, or not there."""
        return None


class LifecycleToolset(Toolset):
    """A `Tool` as a toolset: one instance an episode, created when it opens and released on every path."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.model = _parameters_model(tool)
        self.spec = _spec(tool, self.model)
        self.name = self.spec.name
        self._stages = {stage: self._stage(stage) for stage in STAGES}
        self._traits = ToolTraits(
            tool.pure,
            tool.timeout,
            tool.idempotent,
            tool.endpoint,
            per_episode=any(self._stages[stage][1] is not None for stage in ("create", "execute")),
        )
        self._lane = Lane(self.spec.name, POOL)

    def names(self) -> Sequence[str]:
        return (self.name,)

    def traits(self, name: str) -> ToolTraits:
        return self._traits

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        instance = ToolInstance(self, episode)
        try:
            await instance.create()
            yield instance
        finally:
            await instance.release()

    def has(self, stage: str) -> bool:
        """True where the tool's class gives this stage itself."""
        return getattr(type(self.tool), stage) is not getattr(Tool, stage)

    def begin(self, stage: str, episode: EpisodeContext, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Begin a stage: a coroutine, or the future of its thread."""
        method, injected, asynchronous = self._stages[stage]
        if injected is not None:
            kwargs[injected] = episode
        if asynchronous:
            return typing.cast("Awaitable[Any]", method(*args, **kwargs))
        # What was begun must be ended, also where calls hang.
        submit = self._lane.call if stage == "execute" else self._lane.submit
        return submit(method, *args, **kwargs)

    def kwargs(self, stage: str, episode: EpisodeContext) -> dict[str, Any]:
        """Those of the tool's options, and over them those of the task."""
        key = f"{stage}_kwargs"
        options = self.tool.options
        default = options.get(key) if isinstance(options, Mapping) else getattr(options, key, None)
        given = (episode.task.tools_kwargs.get(self.spec.name) or {}).get(key)
        for source, kwargs in (("the tool's options", default), (f"task {episode.task.id!r}", given)):
            if kwargs is not None and not isinstance(kwargs, Mapping):
                raise ToolsetError(f"{key} of {source} are {kwargs!r:.80}, expected names with values", where=self.name)
        return {**(default or {}), **(given or {})}

    def _stage(self, stage: str) -> tuple[Callable[..., Any], str | None, bool]:
        method = getattr(self.tool, stage)
        return method, context_parameter(method), is_async(method)


class ToolInstance:
    """One tool in one episode: the session of a `Tool`."""

    def __init__(self, bound: LifecycleToolset, episode: EpisodeContext) -> None:
        self._bound = bound
        self._episode = episode
        self._id = uuid.uuid4().hex
        self._jobs: set[asyncio.Future[Any]] = set()
        """Stages that run: threads, and tasks that didn't end when they were cancelled."""
        skipped = () if bound.has("create") else ("create",)
        self._begun: set[str] = {*skipped}
        """Stages that began: a `create` that was cancelled before its first step made nothing to release."""
        self._succeeded: set[str] = {*skipped}
        self._opening: tuple[Message, ...] = ()
        self._kwargs = {stage: bound.kwargs(stage, episode) for stage in STAGES}
        """Of all stages from the beginning, so that a mistake in them is known before anything is created."""

    async def create(self) -> None:
        """First of all stages."""
        if self._bound.has("create"):
            made = await self._run("create", **self._kwargs["create"])
            self._opening = _messages(made, self._bound.name)

    def specs(self) -> Sequence[ToolSpec]:
        return (self._bound.spec,)

    def traits(self, name: str) -> ToolTraits:
        return self._bound.traits(name)

    async def opening(self) -> Sequence[Message]:
        """What `create` returned for the model to see."""
        return self._opening

    async def call(self, call: ToolCall) -> ToolResult:
        name = self._bound.name
        parameters: Any = dict(call.arguments)
        if self._bound.model is not None:
            parameters = validated(self._bound.model, parameters, name)
        return as_result(await self._run("execute", parameters, **self._kwargs["execute"]), name)

    async def reward(self) -> float | None:
        if not self._bound.has("calc_reward"):
            return None
        given: float | None = await self._run("calc_reward", **self._kwargs["calc_reward"])
        return given  # The tool box says whose it is if it isn't a number.

    async def release(self) -> None:
        """Last of all stages; runs to its end even if the episode is cancelled meanwhile. A failure is logged: the
        episode is over, and its result stands."""
        if "create" in self._begun and (self._bound.has("calc_reward") or self._bound.has("release")):
            await uninterrupted(self._finish())

    async def _finish(self) -> None:
        # An event loop that shuts down cancels this too; each step is taken all the same.
        async with AsyncExitStack() as stack:
            if self._bound.has("release"):
                stack.push_async_callback(self._last, "release", self._release)
            if self._bound.has("calc_reward"):
                stack.push_async_callback(self._last, "calc_reward", self._reward_unless_asked)
            if self._jobs:
                # What was cancelled may still use the instance.
                await asyncio.wait(self._jobs, timeout=RELEASE_SECONDS)

    async def _release(self) -> None:
        await self._run("release", **self._kwargs["release"])

    async def _reward_unless_asked(self) -> None:
        if "create" in self._succeeded and "calc_reward" not in self._begun:
            await self.reward()

    async def _last(self, stage: str, work: Callable[[], Awaitable[None]]) -> None:
        name, watch, limit = self._bound.name, Watch(), asyncio.timeout(RELEASE_SECONDS)
        try:
            async with limit:
                await work()
        except BaseException as error:  # the episode is over
            if not watch.failed(error):
                raise
            if limit.expired():
                _log.error("tool %r: %s didn't end within %g s and was cancelled", name, stage, RELEASE_SECONDS)
            else:
                _log.exception("tool %r: %s raised", name, stage)

    async def _run(self, stage: str, *args: Any, **kwargs: Any) -> Any:
        work = self._bound.begin(stage, self._episode, self._id, *args, **kwargs)
        if not isinstance(work, Job):
            # Around a call stands the policy's time limit.
            return await (work if stage == "execute" else self._stoppable(stage, work))
        self._wait_for(work)
        work.when_ended(functools.partial(self._note_thread, stage, work))
        try:
            # A thread can't be stopped: a cancelled caller leaves, the future stays until the function returns.
            made = await asyncio.shield(work)
        except asyncio.CancelledError:
            if stage != "release" or work.begun:  # A release that hasn't begun has its turn all the same.
                work.abandon()
            self._note_thread(stage, work)
            raise
        if inspect.isawaitable(made):  # of a plain wrapper around an async method
            return await (made if stage == "execute" else self._stoppable(stage, made))
        return made

    def _note_thread(self, stage: str, work: Job[Any]) -> None:
        if work.begun:
            self._begun.add(stage)
        if work.begun and work.ended and not work.raised:
            self._succeeded.add(stage)

    async def _stoppable(self, stage: str, work: Awaitable[Any]) -> Any:
        async def run() -> Any:
            self._begun.add(stage)
            value = await work
            self._succeeded.add(stage)  # Here: the caller may be cancelled before it hears of it.
            return value

        return await run_stoppable(f"tool {self._bound.name!r}: {stage}", run, left=self._wait_for)

    def _wait_for(self, work: asyncio.Future[Any]) -> None:
        """Until it has ended, nothing is released."""
        self._jobs.add(work)
        work.add_done_callback(self._jobs.discard)


def _parameters_model(tool: Tool) -> type[BaseModel] | None:
    """The pydantic model that `execute` takes as `parameters`, or None where these stay a dict."""
    execute = type(tool).execute
    written = {n: p for n, p in inspect.signature(execute).parameters.items() if n == "parameters"}
    hint = resolved_hints(execute, written, f"tool class {type(tool).__qualname__!r}").get("parameters")
    return hint if isinstance(hint, type) and issubclass(hint, BaseModel) else None


def _spec(tool: Tool, model: type[BaseModel] | None) -> ToolSpec:
    if isinstance(tool.spec, ToolSpec):
        spec = tool.spec
    elif model is not None and tool.name:
        spec = ToolSpec(tool.name, inspect.cleandoc(type(tool).__doc__ or ""), model_schema(model))
    else:
        raise TypeError(
            f"tool class {type(tool).__qualname__!r} has no spec for the model. Give it `spec = ToolSpec(…)`, "
            "or a `name` and a pydantic model as type hint of execute's `parameters`."
        )
    check_tool_name(spec.name)
    return spec


def _messages(made: Any, tool: str) -> tuple[Message, ...]:
    if made is None:
        return ()
    if isinstance(made, str):
        return (Message("user", made),)
    if isinstance(made, Message):
        return (made,)
    if isinstance(made, list | tuple) and all(isinstance(item, Message) for item in made):
        return tuple(made)
    raise ToolsetError(
        f"create() returned {type(made).__name__} {made!r:.80}, expected None, a text, a Message or a list of Messages",
        where=tool,
    )
