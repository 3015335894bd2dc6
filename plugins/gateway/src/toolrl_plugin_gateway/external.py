"""Episodes for an agent that runs elsewhere: offered and ended over HTTP, with a key of the run besides that of each
episode.

    POST /episodes/next        {"id", "base_url", "api_key", "model", "task"} of the next episode; 204 where none comes
    POST /episodes/<id>/end    {"answer", "reward", "error"}, each may be left out
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from aiohttp import web

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext, Outcome
from toolrl_plugin_gateway.chat_completions import error
from toolrl_plugin_gateway.dialect import RefusedError
from toolrl_plugin_gateway.harness import MODEL, AgentError, GatewayHarness, describe
from toolrl_plugin_gateway.options import ExternalOptions
from toolrl_plugin_gateway.server import read_body, read_key, read_reward
from toolrl_plugin_gateway.session import Session

POLL_SECONDS = 30.0
"""How long a request for the next episode waits."""
_log = logging.getLogger(__name__)


class ExternalHarness(GatewayHarness):
    """Follows Harness. An episode's time begins when an agent takes it."""

    def __init__(self, options: ExternalOptions, context: BuildContext) -> None:
        super().__init__(options, context)
        if options.key is None and not options.host.startswith("127."):
            raise ConfigError("other machines can reach it, so it needs a key", where=f"{context.where}.key")
        self._options = options
        self.key = options.key or secrets.token_hex(16)
        """Of the run."""
        self._offered: asyncio.Queue[tuple[Session, asyncio.Future[None]]] = asyncio.Queue()
        self._playing: dict[str, asyncio.Future[Outcome]] = {}

    async def start(self) -> None:
        """Listen where the options say."""
        await self.listen("/episodes/next", self._next)
        _log.warning("episodes are offered at %s/episodes/next", self.gateway.url)
        if self._options.key is None:
            _log.warning("their key is %s", self.key)

    async def listen(self, path: str, handler: Callable[[web.Request], Awaitable[web.Response]]) -> None:
        """Listen, and begin episodes at a path."""
        self.gateway.app.router.add_route("POST", path, self._of_run(handler))
        self.gateway.app.router.add_route("POST", r"/episodes/{id:\d+}/end", self._of_run(self._end))
        await self.gateway.start(self._options.host, self._options.port)

    def place(self, session: Session) -> AbstractAsyncContextManager[Any]:
        """See GatewayHarness."""
        return self._taken(session)

    @asynccontextmanager
    async def _taken(self, session: Session) -> AsyncIterator[None]:
        taken = asyncio.get_running_loop().create_future()
        self._offered.put_nowait((session, taken))
        try:
            await taken
            yield
        finally:
            taken.cancel()

    async def run(self, session: Session) -> Outcome:
        """See GatewayHarness."""
        try:
            return await self._playing[session.id]
        finally:
            self._playing.pop(session.id).cancel()

    def begin(self, session: Session) -> None:
        """An agent has it, and may end it from now on."""
        self._playing[session.id] = asyncio.get_running_loop().create_future()

    @staticmethod
    def access(session: Session, request: web.Request) -> web.Response:
        """What an agent needs to play an episode."""
        access = {"base_url": f"http://{request.host}/v1", "api_key": session.key, "model": MODEL}
        return web.json_response({"id": session.id, **access, "task": describe(session.task)})

    def _of_run(self, handler: Callable[[web.Request], Awaitable[web.Response]]) -> Any:
        """A route for requests with the key of the run."""

        async def handle(request: web.Request) -> web.Response:
            try:
                if not hmac.compare_digest(read_key(request).encode(), self.key.encode()):
                    raise RefusedError(401, "invalid_api_key", "the key isn't that of the run")
                return await handler(request)
            except RefusedError as refused:
                return web.json_response(error(refused.status, refused.code, refused.message), status=refused.status)

        return handle

    async def _next(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                while True:
                    session, taken = await self._offered.get()
                    if not taken.done():
                        break
        except TimeoutError:
            return web.Response(status=204)
        self.begin(session)
        taken.set_result(None)
        return self.access(session, request)

    async def _end(self, request: web.Request) -> web.Response:
        await self.end(request)
        return web.json_response({})

    async def end(self, request: web.Request) -> None:
        """End the episode of a request as its body says. Raises RefusedError."""
        body = await read_body(request)
        playing = self._playing.get(request.match_info["id"])
        answer, problem = body.get("answer"), body.get("error")
        if not all(it is None or isinstance(it, str) for it in (answer, problem)):
            raise RefusedError.invalid("answer and error have to be texts")
        score = None if body.get("reward") is None else read_reward(body)
        if playing is None or playing.done():
            raise RefusedError(410, "episode_ended", "the episode has ended")
        if problem is None:
            playing.set_result(Outcome(answer, score))
        else:
            playing.set_exception(AgentError(problem))
