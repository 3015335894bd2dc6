"""The command `toolrl gateway serve CONFIG`: episodes that an agent elsewhere begins, plays and ends.

POST /episodes              {"task": a row of data.train by its number, or {"messages": …, "answer": …}}
POST /episodes/<id>/end     {"answer", "reward", "error"}, each may be left out; the scored episode

Both carry a key of the run; requests to the model carry the key of their episode.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import hmac
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from toolrl.chat.conversation import check_question, read_messages
from toolrl.chat.row_remarks import Remarks
from toolrl.cli.common import add_run_arguments, read, run_job
from toolrl.cli.session import run_to_end
from toolrl.errors import ConfigError, DataError
from toolrl.protocols import BuildContext, Command, Outcome, StepReport
from toolrl.types import Episode, Task
from toolrl_plugin_gateway.dialect import Json, RefusedError, read_object
from toolrl_plugin_gateway.harness import MODEL, AgentError, GatewayHarness, describe
from toolrl_plugin_gateway.options import HarnessOptions
from toolrl_plugin_gateway.server import read_body, read_key, read_reward, refused
from toolrl_plugin_gateway.session import Session

if TYPE_CHECKING:
    from toolrl.assembly import Assembly
    from toolrl.rollouts.source import GroupSource

ROUND = "served"


class Serve(Command):
    """The command."""

    example = "toolrl gateway serve grpo.yaml --port 8000"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        add_run_arguments(parser, resume=False)
        parser.set_defaults(kind="rollout", suffix="-served")
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
        parser.add_argument("--key", help="what requests for episodes carry (default: a random one, which is printed)")
        parser.add_argument("--time-limit", type=float, default=600.0, help="seconds of an episode (default: 600)")

    def run(self, args: argparse.Namespace) -> int:
        """Serve until SIGINT or SIGTERM; the exit status."""
        return run_to_end(_serve(args))


async def _serve(args: argparse.Namespace) -> int:
    data = {"data.train": False}
    loaded, registry = read(args, data)
    server = partial(EpisodeServer, host=args.host, port=args.port, key=args.key, time_limit=args.time_limit)
    return await run_job(args, loaded, registry, partial(serve, make=server), data=data)


async def serve(assembly: Assembly, make: Callable[[Assembly], EpisodeServer]) -> dict[str, Any]:
    """Serve episodes of an assembled run, until this is cancelled."""
    server = make(assembly)
    for name, environment in assembly.environments.items():
        assembly.environments[name] = dataclasses.replace(environment, harness=server)
    assembly.events.run_start()
    try:
        await server.start()
        print(f"serving at {server.gateway.url}\nkey: {server.key}", flush=True)
        await asyncio.Event().wait()
    finally:
        await server.stop()
        assembly.events.step_end(StepReport(0, "rollout", {"episodes": float(server.ended)}))
    return {}


class EpisodeServer(GatewayHarness):
    """Plays the episodes that a client begins."""

    def __init__(self, assembly: Assembly, *, host: str, port: int, key: str | None, time_limit: float) -> None:
        super().__init__(HarnessOptions(time_limit=time_limit), BuildContext("serve"))
        if key is None and not host.startswith("127."):
            raise ConfigError("other machines can reach it, so it needs a key", where="--key")
        self.key = key or secrets.token_hex(16)
        self._address = host, port
        self._assembly = assembly
        self._runner = cast("GroupSource", assembly.runner)  # One rank, which samples itself.
        self._gate = self._runner.gate()
        self._numbers = count()
        self._remarks = Remarks()
        self._begun: dict[str, asyncio.Future[Session]] = {}
        """By the episode's id in its run."""
        self._playing: dict[str, asyncio.Future[Outcome]] = {}
        self._episodes: dict[str, asyncio.Task[Episode]] = {}
        """By the session's id."""
        self.ended = 0
        """How many episodes."""

    async def start(self) -> None:
        """Listen where the arguments say."""
        self.gateway.app.router.add_route("POST", "/episodes", self._of_run(self._begin))
        self.gateway.app.router.add_route("POST", r"/episodes/{id:\d+}/end", self._of_run(self._end))
        await self.gateway.start(*self._address)

    async def stop(self) -> None:
        """Cancel what is played."""
        for episode in self._episodes.values():
            episode.cancel()
        await asyncio.gather(*self._episodes.values(), return_exceptions=True)
        await super().stop()

    async def run(self, session: Session) -> Outcome:
        """See GatewayHarness. The client may end it from now on."""
        ended = self._playing[session.id] = asyncio.get_running_loop().create_future()
        self._begun[session.context.episode_id].set_result(session)
        try:
            return await ended
        finally:
            del self._playing[session.id]

    def _of_run(self, handler: Callable[[web.Request], Awaitable[web.Response]]) -> Any:
        """A route for requests with the key of the run."""

        async def handle(request: web.Request) -> web.Response:
            try:
                given = read_key(request).encode(errors="surrogateescape")  # A header may have any bytes.
                if not hmac.compare_digest(given, self.key.encode()):
                    raise RefusedError(401, "invalid_api_key", "the key isn't that of the run")
                return await handler(request)
            except RefusedError as error:
                return refused(request, error)

        return handle

    async def _begin(self, request: web.Request) -> web.Response:
        number = next(self._numbers)
        task = self._task((await read_body(request)).get("task"), number)
        name = f"{ROUND}/{number}/{task.id}#0"
        begun = self._begun[name] = asyncio.get_running_loop().create_future()
        episode = asyncio.create_task(self._played(task, number))
        await asyncio.wait([begun, episode], return_when=asyncio.FIRST_COMPLETED)
        del self._begun[name]
        if not begun.done():
            failure = episode.result().failure
            raise RefusedError.invalid(f"the episode didn't begin: {failure.message if failure else 'it has ended'}")
        session = begun.result()
        self._episodes[session.id] = episode
        access = {"base_url": f"http://{request.host}/v1", "api_key": session.key, "model": MODEL}
        return web.json_response({"id": session.id, **access, "task": describe(task)})

    def _task(self, given: Any, number: int) -> Task:
        """A row of data.train, or a task of the client's own. Raises RefusedError."""
        if type(given) is int:  # A bool is none.
            rows = self._assembly.dataset("train")
            if not 0 <= given < len(rows):
                raise RefusedError.invalid(f"task is {given}, and data.train has {len(rows)} rows")
            return rows[given]
        row = read_object(given, "task")
        known = {"id", "messages", "answer", "environment"}
        extra = {name: value for name, value in row.items() if name not in known}
        try:
            with self._remarks.on_row(lambda: f"task {number}"):
                messages = read_messages(row.get("messages"), "task.messages")
            check_question(messages)
        except DataError as error:
            raise RefusedError.invalid(error.message) from None
        environment, there = row.get("environment"), list(self._assembly.environments)
        if environment not in (None, *there):
            raise RefusedError.invalid(f"task.environment is {environment!r:.80}; the config has: {', '.join(there)}")
        return Task(str(row.get("id", number)), messages, row.get("answer"), environment, extra=extra)

    async def _played(self, task: Task, number: int) -> Episode:
        group = await self._runner.group(task, number, 1, self._assembly.limits, round_id=ROUND, gate=self._gate)
        self._runner.notify([group])
        self.ended += 1
        return group.episodes[0]

    async def _end(self, request: web.Request) -> web.Response:
        name, body = request.match_info["id"], await read_body(request)
        answer, problem = body.get("answer"), body.get("error")
        if not all(it is None or isinstance(it, str) for it in (answer, problem)):
            raise RefusedError.invalid("answer and error have to be texts")
        score = None if body.get("reward") is None else read_reward(body)
        episode = self._episodes.pop(name, None)
        if episode is None:
            raise RefusedError(404, "not_found", f"there is no episode {name!r}")
        playing = self._playing.get(name)
        if playing is not None and not playing.done():  # Else its time is up.
            if problem is None:
                playing.set_result(Outcome(answer, score))
            else:
                playing.set_exception(AgentError(problem))
        return web.json_response(_summary(await episode))


def _summary(episode: Episode) -> Json:
    """What a client gets of a scored episode."""
    return {
        "id": episode.id,
        "reward": episode.reward,
        "rewards": {entry.source: entry.weight * entry.value for entry in episode.rewards},
        "answer": episode.answer,
        "stop_reason": episode.stop_reason,
        "failure": episode.failure.message if episode.failure else None,
        "turns": len(episode.turns),
        "trajectories": len(episode.trajectories),
        "tokens": episode.sampled_tokens,
        "metrics": dict(episode.metrics),
    }
