"""One episode: its tool objects, its scratch folder, and what its tools may know of the conversation."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from toolrl.errors import ArgumentsError, ToolsetError, ToolUnavailableError
from toolrl.protocols import ToolSession
from toolrl.tools.lifecycle import RELEASE_SECONDS
from toolrl.tools.threads import POOL, Job, ThreadPool
from toolrl.tools.traits import ToolTraits
from toolrl.types import Task, ToolCall, ToolResult, ToolSpec
from toolrl_common.user_classes import accepted
from toolrl_plugin_qwen_agent.conversation import EpisodeConversation
from toolrl_plugin_qwen_agent.failures import error_for_model
from toolrl_plugin_qwen_agent.guards import guarded
from toolrl_plugin_qwen_agent.options import QwenAgentOptions
from toolrl_plugin_qwen_agent.results import as_answer, image_paths

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolKind:
    """One tool: how it is made and called."""

    make: Callable[[Path, Mapping[str, Any]], Any]
    """A new object, of the episode's folder and settings. Raises ToolsetError."""
    spec: ToolSpec
    """Under the name that the model knows."""
    own_name: str
    """Qwen-Agent's name of it."""


class EpisodeTools(ToolSession):
    """The tools of one episode."""

    def __init__(
        self, kinds: Mapping[str, ToolKind], task: Task, options: QwenAgentOptions, folder: Path, *, images: bool
    ) -> None:
        """`folder` is the episode's own, made where it is needed. `images`: the model is handed images."""
        self._kinds = kinds
        self._task = task
        self._options = options
        self._folder = folder
        self._images = images
        self._tools: dict[str, Any] = {}
        self._threads: dict[str, ThreadPool] = {}
        """Pools of one thread, where objects have their own."""
        self._turns: dict[str, asyncio.Lock] = {}
        self._stuck: set[str] = set()
        """Tools whose cancelled call still runs."""
        self._jobs: set[Job[Any]] = set()
        self._conversation: EpisodeConversation | None = None

    async def begin(self, shared: Mapping[str, Any]) -> None:
        """Make the tools that the task wants, or take the `shared` ones that other episodes use too. Raises
        ToolsetError."""
        wanted = [name for name in self._kinds if self._task.tools is None or name in self._task.tools]
        settings = {name: self._kwargs(name, "create_kwargs") for name in wanted}

        def make(names: Sequence[str]) -> None:
            for name in names:
                self._tools[name] = self._kinds[name].make(self._folder, settings[name])

        if not self._options.per_episode:
            if named := next(filter(settings.get, settings), None):
                raise ToolsetError("create_kwargs need `instances: episode`", where=named)
            self._tools = dict(shared)
        elif self._options.instances == "thread":
            for name in wanted:
                self._threads[name] = ThreadPool(1)
                await self._run(self._threads[name].submit(make, [name]))
        else:
            await self._run(POOL.submit(make, wanted))
        self._turns = {name: asyncio.Lock() for name in wanted if self._options.per_episode}
        self._conversation = await self._run(POOL.submit(EpisodeConversation, self._task, self._folder / "prompt"))

    def specs(self) -> Sequence[ToolSpec]:
        return tuple(kind.spec for kind in self._kinds.values())

    def resolve(self, name: str) -> str | None:
        """The tool that is called so in Qwen-Agent."""
        meant = [shown for shown, kind in self._kinds.items() if kind.own_name == name]
        return meant[0] if len(meant) == 1 else None

    def traits(self, name: str) -> ToolTraits:
        return ToolTraits(per_episode=True)

    async def call(self, call: ToolCall) -> ToolResult:
        tool = self._tools[call.name]
        check_sendable(call.arguments)
        kwargs = self._kwargs(call.name, "execute_kwargs")
        assert self._conversation is not None
        conversation, heard = self._conversation, self._conversation.listen()

        def work() -> ToolResult:
            given = {**accepted(tool.call, conversation.known(tool)), **kwargs}
            return self._answer(tool, dict(call.arguments), given, heard)

        lock = self._turns.get(call.name)
        if lock is None:
            return await self._run(POOL.put(work))
        if call.name not in self._stuck:
            await lock.acquire()
            job = self._threads.get(call.name, POOL).put(work)
            job.when_ended(lock.release)
            return await self._run(job, call.name)
        raise ToolUnavailableError(
            f"The tool {call.name!r} is still busy with an earlier call that took too long. Go on without it."
        )

    async def close(self) -> None:
        """Wait some time for calls that were given up, let go of the tools, remove the folder."""
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=RELEASE_SECONDS)
        for name, thread in self._threads.items():
            if name in self._tools:
                await thread.submit(let_go, {name: self._tools.pop(name)}, None)
            thread.close_idle()
        await POOL.submit(let_go, self._tools, self._folder, own=self._options.per_episode)

    async def _run(self, job: Job[T], name: str | None = None) -> T:
        """Await a thread. It can't be stopped: the session keeps the job of a cancelled caller until it ends."""
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            job.abandon()
            if name is not None and not job.ended:
                self._stuck.add(name)
                job.when_ended(lambda: self._stuck.discard(name))
            raise

    def _answer(self, tool: Any, arguments: dict[str, Any], kwargs: Mapping[str, Any], heard: list[str]) -> ToolResult:
        """In a thread."""
        folders = (self._folder, *self._options.readable)
        arguments = guarded(tool, arguments, folders, urls=self._options.urls)
        try:
            # Qwen-Agent's agents hand over the model's own text, and some tools read nothing else.
            value = tool.call(json.dumps(arguments, ensure_ascii=False), **kwargs)
        except Exception as error:
            meant = error_for_model(error)
            if meant is error:
                raise
            raise meant from error
        answer = as_answer(value, images=self._images)
        heard.extend(image_paths(value))
        return answer

    def _kwargs(self, name: str, stage: str) -> dict[str, Any]:
        """What the task gives a tool for a stage. Raises ToolsetError."""
        given = (self._task.tools_kwargs.get(name) or {}).get(stage)
        if given is not None and not isinstance(given, Mapping):
            raise ToolsetError(f"{stage} are {given!r:.80}, expected names with values", where=name)
        return dict(given or {})


def let_go(tools: dict[str, Any], folder: Path | None, *, own: bool = True) -> None:
    """Forget tools, and with `own` end their kernels; remove their folder. In a thread: it may take its time."""
    module = sys.modules.get("qwen_agent.tools.code_interpreter")
    for name, tool in tools.items() if own else ():
        # A code_interpreter ends its container in `__del__`, and leaves a connection open: a thread, and some sockets.
        key = f"{getattr(tool, 'instance_id', '')}_{os.getpid()}"
        client = getattr(module, "_KERNEL_CLIENTS", {}).pop(key, None)
        try:
            if client is not None:
                client.shutdown()
                client.stop_channels()
        except Exception:  # noqa: BLE001 - the episode is over, and its folder has to go
            _log.exception("tool %r: its kernel can't be ended", name)
    tools.clear()  # What a tool has to end itself, it ends in `__del__`.
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def check_sendable(arguments: Mapping[str, Any]) -> None:
    """Raises ArgumentsError for arguments that JSON can't hold."""
    try:
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentsError(f"The arguments can't be used: {error}.") from None
