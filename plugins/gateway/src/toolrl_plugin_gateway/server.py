"""The HTTP server in front of the rollout engine: a request names its episode by a key, and its model answers.

Served are `/v1/chat/completions`, `/v1/responses`, `/v1/messages` and `/v1/models`; `POST /v1/reward` takes the agent's
own reward of its episode. A turn is sampled whole before it is streamed.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from aiohttp import web

from toolrl import bounded_json
from toolrl.errors import ConfigError
from toolrl.protocols import EpisodeContext, Model
from toolrl.types import Score, Task
from toolrl_plugin_gateway import anthropic_messages, chat_completions, responses
from toolrl_plugin_gateway.dialect import Dialect, Json, RefusedError, encode_events
from toolrl_plugin_gateway.session import Reply, Session

IDLE_SECONDS = 30.0
"""After which a connection without a request is closed. Clients keep theirs for 5 s, and may be busy when they send."""
LARGEST_REQUEST = 64 << 20
"""Bytes."""
_V1 = "/{v1:(?:v1/)*}"
"""Some SDKs append `v1` to their base URL, others expect it there."""


class Gateway:
    """`start` it, `stop` it on every path. For one event loop."""

    def __init__(self, roles: Mapping[str, str]) -> None:
        """`roles`: who is asked by a model's name."""
        self._roles = roles
        self._numbers = count()
        self._sessions: dict[str, Session] = {}
        self.url = ""
        """The address, once it listens."""
        self.app = web.Application(client_max_size=LARGEST_REQUEST)
        self._runner: Any = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one. Raises ConfigError where the address can't be had."""
        add = self.app.router.add_route
        add("POST", f"{_V1}chat/completions", self._answering(chat_completions))
        add("POST", f"{_V1}responses", self._answering(responses))
        add("POST", f"{_V1}messages", self._answering(anthropic_messages))
        add("GET", f"{_V1}models", self._refusing(chat_completions, self._models))
        add("POST", f"{_V1}reward", self._refusing(chat_completions, self._reward))
        # A client that leaves cancels its handler.
        self._runner = web.AppRunner(
            self.app,
            handle_signals=False,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=IDLE_SECONDS,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"the gateway can't listen on {host}:{port}: {error.strerror or error}", hint="Choose another port."
            ) from error
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close all connections; also when start failed half-way."""
        if self._runner is not None:
            await self._runner.cleanup()

    @asynccontextmanager
    async def session(self, task: Task, model: Model, context: EpisodeContext) -> AsyncIterator[Session]:
        """One episode, whose requests are answered until this is left."""
        session = Session(str(next(self._numbers)), task, model, context, self._roles)
        self._sessions[session.key] = session
        try:
            yield session
        finally:
            del self._sessions[session.key]
            await session.close()

    # Requests.

    def _session(self, request: web.Request) -> Session:
        """The episode of a request. Raises RefusedError."""
        session = self._sessions.get(read_key(request))
        if session is None:
            raise RefusedError(401, "invalid_api_key", "the key is of no episode, or of one that has ended")
        return session

    def _answering(self, dialect: Dialect) -> Any:
        """The route of a dialect's questions."""

        async def answer(request: web.Request, session: Session) -> web.StreamResponse:
            body = await read_body(request)
            digest = hashlib.blake2b(request.path.encode() + await request.read(), digest_size=16).digest()
            retried = request.headers.get("x-stainless-retry-count", "0") != "0"
            reply = session.reply(dialect, body, digest, retried=retried)
            reply.waiting += 1
            try:
                return await self._send(dialect, request, body, reply)
            finally:
                reply.waiting -= 1
                if not reply.waiting:  # The last client left.
                    reply.task.cancel()

        return self._refusing(dialect, answer)

    def _refusing(self, dialect: Dialect, handler: Any) -> Any:
        """A route whose refusals have the dialect's form."""

        async def handle(request: web.Request) -> web.StreamResponse:
            session = None
            current = asyncio.current_task()
            assert current is not None
            try:
                session = self._session(request)
                session.handlers.add(current)
                response: web.StreamResponse = await handler(request, session)
            except RefusedError as error:
                if session is not None:
                    session.counts["refused"] += 1
                body = dialect.error(error.status, error.code, error.message)
                # SDKs repeat a request after a status of 500 unless they are told not to.
                return web.json_response(body, status=error.status, headers={"x-should-retry": "false"})
            else:
                return response
            finally:
                if session is not None:
                    session.handlers.discard(current)

        return handle

    async def _send(self, dialect: Dialect, request: web.Request, body: Json, reply: Reply) -> web.StreamResponse:
        """The response, once it is there, whole or as a stream."""
        response = await _result(reply.task)
        if not body.get("stream"):
            return web.json_response(response)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await stream.prepare(request)
        await stream.write(encode_events(dialect.stream(body, response)))
        await stream.write_eof()
        return stream

    async def _models(self, request: web.Request, session: Session) -> web.Response:
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": "toolrl"} for name in ("agent", *self._roles)
        ]
        return web.json_response({"object": "list", "data": models})

    async def _reward(self, request: web.Request, session: Session) -> web.Response:
        session.score = read_reward(await read_body(request))
        return web.json_response({"reward": session.score.value})


def read_key(request: web.Request) -> str:
    """The key that a request carries; empty where it has none."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    return request.headers.get("x-api-key") or bearer


def read_reward(body: Json) -> Score:
    """The agent's own reward of its episode. Raises RefusedError."""
    reward = body.get("reward")
    known = isinstance(reward, int | float) and not isinstance(reward, bool)
    number: Any = reward if known else math.nan
    if not abs(number) <= sys.float_info.max:
        raise RefusedError.invalid(f'the body has no finite number: expected {{"reward": 1.0}}, got {reward!r:.80}')
    return Score(float(number))


async def read_body(request: web.Request) -> Json:
    """Raises RefusedError for anything but a JSON object."""
    try:
        body = bounded_json.loads(await request.read())
    except web.HTTPRequestEntityTooLarge:
        raise RefusedError(413, "request_too_large", f"the request has more than {LARGEST_REQUEST} bytes") from None
    except (ValueError, RecursionError, web.RequestPayloadError) as error:
        raise RefusedError.invalid(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise RefusedError.invalid(f"the body is {type(body).__name__}, expected an object")
    return body


async def _result(task: asyncio.Task[Json]) -> Json:
    """A reply's body. Raises RefusedError, also where the episode ended first; a client that leaves doesn't end it."""
    await asyncio.wait([task])
    if task.cancelled():
        raise RefusedError(410, "episode_ended", "the episode has ended while the model was asked")
    return task.result()
