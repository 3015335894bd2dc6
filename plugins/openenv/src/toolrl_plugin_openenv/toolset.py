"""The toolset `openenv`: the environment of an OpenEnv server, as the rollout sees it.

    {use: openenv, options: {url: "http://127.0.0.1:8000"}}

Each episode has a WebSocket, and so an environment, of its own. What the environment lists when the run starts are its
tools for all episodes; an environment without tools is talked with.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import jsonschema

from toolrl.errors import ConfigError, ToolsetError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession
from toolrl.tools.cancellation import uninterrupted
from toolrl.tools.threads import POOL
from toolrl.tools.validation import MAX_TOOLS, catalogue_bound, compile_schema
from toolrl.types import Task, ToolSpec
from toolrl_plugin_openenv.actions import ActionReader
from toolrl_plugin_openenv.connection import Address, OpenEnvConnection, connect
from toolrl_plugin_openenv.container import Container
from toolrl_plugin_openenv.episode import EnvironmentEpisode, OpenEnvEpisode, reset_arguments
from toolrl_plugin_openenv.observations import clean, make_show
from toolrl_plugin_openenv.options import OpenEnvOptions
from toolrl_plugin_openenv.schema import action_schema, pick_field
from toolrl_plugin_openenv.session_pool import SessionPool
from toolrl_plugin_openenv.sessions import EnvironmentTools, QueuedSession, TextSession, ToolsSession
from toolrl_plugin_openenv.wire import LIST_TOOLS, Failure, Observed, step_message

START_DELAY = 0.25
"""Seconds between tries to reach a server that is still starting."""
_log = logging.getLogger(__name__)


def build(options: OpenEnvOptions, context: BuildContext) -> OpenEnvToolset:
    """The toolset with these options; it connects when it starts."""
    return OpenEnvToolset(options, context)


def check() -> str:
    """For `toolrl doctor`: the WebSocket library can be imported, and which one it is."""
    return f"websockets {importlib.metadata.version('websockets')}"


class OpenEnvToolset:
    """See the module's docstring."""

    def __init__(self, options: OpenEnvOptions, context: BuildContext) -> None:
        self._options = options
        self._context = context
        self._where = context.where or context.name
        self._address = Address(
            options.url or "",
            {name: value.get_secret_value() for name, value in options.headers.items()},
            options.connect_timeout,
            options.close_timeout,
            options.max_message_bytes,
        )
        self._container: Container | None = None
        self._show = make_show(options.observation, context.chat_format, options.max_observation_tokens)
        self._read = make_show(options.observation, None, options.max_observation_tokens)
        self._trouble: ToolsetError | None = None
        """Why the server couldn't be reached at the last try."""
        self.pool: SessionPool | None = None
        """The way into the server; None before the start."""
        self._names: Sequence[str] | None = None
        self._session: Callable[[EnvironmentEpisode], ToolSession] | None = None
        """What the rollout gets of an episode."""

    def names(self) -> Sequence[str] | None:
        """What the model can call; None before the environment has said it."""
        return self._names

    async def start(self) -> None:
        """Wait until the server is there, and ask what it has. Raises ToolsetError, ConfigError."""
        options = self._options
        if options.image is not None:
            given = {name: value.get_secret_value() for name, value in options.env_vars.items()}
            self._container = Container(options.image, given, self._context.name)
            _log.info("starting a container of %s", options.image)
            self._address = replace(self._address, url=await self._container.start())
        self.pool = SessionPool(self._address, options, self._context.name)
        try:
            async with asyncio.timeout(options.start_timeout):
                listed = await self._first_look()
                if options.mode == "action":
                    self._offer(await self._action_tool())
                elif listed:
                    # Checking schemas takes time.
                    self._offer(await POOL.submit(make_catalog, listed, self._where))
                else:
                    self._names, self._session = (), await self._talk()
        except ToolsetError as error:
            error.where = self._context.name
            raise
        except TimeoutError:
            raise ToolsetError(
                f"{self._address.shown} didn't say what it has within {options.start_timeout:g} s (start_timeout)"
                + (f"; at last: {self._trouble.message}" if self._trouble else ""),
                where=self._context.name,
                hint=self._trouble.hint if self._trouble else "It opened a session, and what it has didn't come.",
            ) from None

    def open(self, task: Task, episode: EpisodeContext) -> AbstractAsyncContextManager[ToolSession]:
        """A session of one episode. Entering it raises ToolsetError and DataError."""
        return QueuedSession(self._open(episode))

    @asynccontextmanager
    async def _open(self, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        options, pool = self._options, self.pool
        if pool is None or self._session is None:
            raise ToolsetError("the toolset wasn't started")
        arguments = {"episode_id": uuid.uuid4().hex}
        arguments.update(reset_arguments(options, self._context.name, self._context.seed, episode))
        async with pool.session() as connection:
            yield self._session(OpenEnvEpisode(options, arguments, connection))

    async def stop(self) -> None:
        """Close what is left."""
        self.pool = self._names = self._session = None
        container, self._container = self._container, None
        if container is not None:
            await uninterrupted(container.stop())

    def _offer(self, tools: EnvironmentTools) -> None:
        """Episodes have these tools."""
        options = self._options
        self._names = [spec.name for spec in tools.specs]
        self._session = lambda play: ToolsSession(
            play, self._show, tools, self._read, options.step_timeout, self._address.shown
        )

    # What the server has.

    async def _first_look(self) -> list[Any]:
        """The tools that the environment lists; none where there are none, or none are wanted. Waits for a server that
        is still starting, and for a place on it."""
        while True:
            try:
                connection = await connect(self._address)
                self._trouble = None
                break
            except ToolsetError as error:
                self._trouble = error
                await asyncio.sleep(START_DELAY)
        try:
            return [] if self._options.mode in ("action", "text") else await self._listed(connection)
        finally:
            await uninterrupted(connection.close())

    async def _listed(self, connection: OpenEnvConnection) -> list[Any]:
        answer = await connection.request(step_message(LIST_TOOLS), self._options.step_timeout)
        tools = answer.observation.get("tools") if isinstance(answer, Observed) else None
        if isinstance(tools, list) and tools:
            return tools
        if self._options.mode == "auto":
            return []
        said = answer.message if isinstance(answer, Failure) else "its list is empty"
        if isinstance(answer, Observed) and isinstance(answer.observation.get("metadata"), Mapping):
            said = str(answer.observation["metadata"].get("error") or said)
        raise ToolsetError(
            f"{self._address.shown} lists no tools: {said[:500]}",
            hint="Use `mode: action` to call the environment's action as a tool, or `mode: text` to talk with it.",
        )

    async def _action_tool(self) -> EnvironmentTools:
        schema = await action_schema(self._address)
        said = str(schema.get("description") or "Take an action in the environment.")
        spec = await POOL.submit(_spec, self._options.tool_name, said, schema)
        return EnvironmentTools((spec,), {})

    async def _talk(self) -> Callable[[EnvironmentEpisode], ToolSession]:
        """Episodes are talks."""
        options = self._options.action
        field = pick_field(await action_schema(self._address), options.field, self._where)
        reader = ActionReader(options, field.kind)
        return lambda play: TextSession(
            play, self._show, reader, options.invalid_reward, lambda said: {**options.constants, field.name: said}
        )


def make_catalog(listed: Sequence[Any], where: str) -> EnvironmentTools:
    """The tools that an environment lists, under names that every parser can carry. Raises ConfigError for two of one
    name, and for too many."""
    if len(listed) > MAX_TOOLS:
        raise ConfigError(
            f"the environment lists {len(listed)} tools; expected at most {MAX_TOOLS}",
            where=where,
            hint="Each tool is a part of every prompt: offer fewer, or use `mode: action`.",
        )
    with catalogue_bound():
        return _make_catalog(listed, where)


def _make_catalog(listed: Sequence[Any], where: str) -> EnvironmentTools:
    specs: list[ToolSpec] = []
    own_names: dict[str, str] = {}
    for tool in listed:
        if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str) or not tool["name"]:
            _log.warning("%s: an entry in the environment's list of tools has no name and is left out", where)
            continue
        own = tool["name"]
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", own)[:64]
        name = name if re.match(r"[A-Za-z_]", name) else f"_{name}"[:64]
        if name in own_names:
            raise ConfigError(
                f"the environment has the tools {own_names[name]!r} and {own!r}, which are both called {name!r} here",
                where=where,
                hint="Rename one in the environment.",
            )
        own_names[name] = own
        schema = tool.get("input_schema") or tool.get("inputSchema")
        specs.append(_spec(name, str(tool.get("description") or own), schema))
    return EnvironmentTools(tuple(specs), own_names)


def _spec(name: str, description: str, schema: Any) -> ToolSpec:
    """A tool whose schema can be used, or which takes any arguments."""
    if isinstance(schema, Mapping):
        usable = {"properties": {}, **schema, "type": "object"}
        try:
            compile_schema(usable)
            return ToolSpec(name, clean(description), usable)
        except (jsonschema.SchemaError, RecursionError, ValueError, TypeError) as error:
            _log.warning(
                "the schema of the tool %r can't be used, so its arguments aren't checked: %.300s", name, error
            )
    return ToolSpec(name, clean(description))
