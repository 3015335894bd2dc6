"""The HTTP server in front of the rollout engine: a request names its episode by a key, and its model answers.

Served are `/v1/chat/completions`, `/v1/responses`, `/v1/messages`, the counts of their tokens, and `/v1/models`; `POST
/v1/reward` takes the agent's own reward of its episode, with a key of its own. A turn is sampled whole before it is
streamed.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
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
BODY_SECONDS = 60.0
"""Time limit for a client to send a request's body, once its headers are there."""
LARGEST_REQUEST = 64 << 20
"""Bytes."""
_V1 = "/{v1:(?:v1/)*}"
"""Some SDKs append `v1` to their base URL, others expect it there."""


class Gateway:
    """`start` it, `stop` it on every path. For one event loop."""

    def __init__(self, roles: Mapping[str, str]) -> None:
        """`roles`: who is asked by a model's name."""
        self._roles = roles
        self._asked: set[str] = set()
        self._numbers = count()
        self._sessions: dict[str, Session] = {}
        """By the key of requests to the model."""
        self._rewarded: dict[str, Session] = {}
        """By the key of the reward."""
        self._said: set[str] = set()
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
        add("POST", f"{_V1}messages/count_tokens", self._refusing(self._counting(anthropic_messages)))
        add("POST", f"{_V1}responses/input_tokens", self._refusing(self._counting(responses)))
        add("GET", f"{_V1}models", self._refusing(self._models))
        add("GET", f"{_V1}models/{{id:.+}}", self._refusing(self._model))
        add("POST", f"{_V1}reward", self._reward)
        add("*", "/{path:.*}", self._unknown)
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

    def unasked(self) -> list[str]:
        """The names in `roles` that no request had; none if there was no request."""
        return [name for name in self._roles if name not in self._asked] if self._asked else []

    @asynccontextmanager
    async def session(self, task: Task, model: Model, context: EpisodeContext) -> AsyncIterator[Session]:
        """One episode, whose requests are answered until this is left."""
        session = Session(str(next(self._numbers)), task, model, context, self._roles, self._asked, self._said)
        self._sessions[session.key] = self._rewarded[session.reward_key] = session
        try:
            yield session
        finally:
            del self._sessions[session.key], self._rewarded[session.reward_key]
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
            try:
                body = await read_body(request)
            except RefusedError as error:
                session.refuse(error)
                raise
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

        return self._refusing(answer)

    def _refusing(self, handler: Any) -> Any:
        """A route whose refusals have the form of the request's API."""

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
                return refused(request, error)
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

    def _counting(self, dialect: Dialect) -> Any:
        """The route that counts the tokens of a dialect's questions."""

        async def count(request: web.Request, session: Session) -> web.Response:
            number = session.count(dialect, await read_body(request))
            kind = {} if dialect is anthropic_messages else {"object": "response.input_tokens"}
            return web.json_response({**kind, "input_tokens": number})

        return count

    async def _models(self, request: web.Request, session: Session) -> web.Response:
        models = [_described(request, name) for name in ("agent", *self._roles)]
        ends = {"has_more": False, "first_id": models[0]["id"], "last_id": models[-1]["id"]}
        return web.json_response({"data": models, **(ends if _is_anthropic(request) else {"object": "list"})})

    async def _model(self, request: web.Request, session: Session) -> web.Response:
        """Whatever its name: each is answered."""
        return web.json_response(_described(request, request.match_info["id"]))

    async def _reward(self, request: web.Request) -> web.Response:
        key = read_key(request)
        session, playing = self._rewarded.get(key), self._sessions.get(key)
        try:
            if playing is not None:
                playing.counts["refused"] += 1
                text = (
                    "this key asks the model and sets no reward: use the episode's reward_key (the option agent_reward "
                    "of the harness `command`), or POST /episodes/<id>/end of `toolrl gateway serve`"
                )
                raise RefusedError(403, "not_the_reward_key", text)
            if session is None:
                raise RefusedError(401, "invalid_api_key", "the key is of no episode, or of one that has ended")
            score = read_reward(await read_body(request))
            if session.score is not None:
                raise RefusedError(409, "reward_is_set", f"the reward is set once, and is {session.score.value}")
            session.score = score
        except RefusedError as error:
            return refused(request, error)
        return web.json_response({"reward": score.value})

    async def _unknown(self, request: web.Request) -> web.Response:
        """Any other path or method."""
        served = "POST /v1/chat/completions, /v1/responses, /v1/messages, GET /v1/models"
        text = f"{request.method} {request.path:.200} is not served; expected {served}"
        refusal = RefusedError(404, "not_found", text)
        if (session := self._sessions.get(read_key(request))) is not None:
            session.counts["refused"] += 1
            if request.path.endswith("/completions"):
                session.refuse(refusal)
            elif not session.answered:
                session.refusal = refusal  # The agent's questions may have gone there.
        return refused(request, refusal)


def refused(request: web.Request, refusal: RefusedError) -> web.Response:
    """A refusal in the form of the request's API. SDKs repeat a request after some statuses unless told not to."""
    dialect: Dialect = anthropic_messages if _is_anthropic(request) else chat_completions
    return web.json_response(dialect.error(refusal), status=refusal.status, headers={"x-should-retry": "false"})


def _is_anthropic(request: web.Request) -> bool:
    path = re.sub(r"^/(v1/)*", "", request.path)
    return "anthropic-version" in request.headers or f"{path}/".startswith("messages/")


def _described(request: web.Request, name: str) -> Json:
    """A model of the list, in the form of the request's API."""
    if _is_anthropic(request):
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "toolrl"}


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
        async with asyncio.timeout(BODY_SECONDS):
            sent = await request.read()
        body = bounded_json.loads(sent)
    except TimeoutError:
        raise RefusedError(408, "request_timeout", f"the body did not arrive within {BODY_SECONDS:g} s") from None
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
