"""Tests of the Sandbox Fusion test plan in verl's documentation, by its names.

What verl tests on its rollout request is tested here on an episode: its tools, its messages, how it ends. What verl
times is counted here: how many programs the sandbox has under way at once, and whether every call is answered.
Sandboxes are real: the plugin's local server, or a server of the test that runs the programs itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sandbox_answers import finished

from toolrl.errors import ConfigError
from toolrl.plugins.registry import load_registry
from toolrl.rollout.environment import Environment, Limits
from toolrl.rollout.episode import EpisodePlan, EpisodeRun, State
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.toolset import as_toolset
from toolrl.types import CallRecord, Episode, Message, ParsedTurn, ToolCall
from toolrl_testing import FakeChatFormat, ScriptedEngine, make_build_context, make_episode_context, make_task
from toolrl_testing.http_stub import HttpReply, HttpStub

QUESTION = (
    "There are 152 students. 100 take Math, 94 Science, 57 English; 73 take Math and Science, 24 Math and English, 27 "
    "Science and English; 22 take all three. How many take none of them?"
)
FIRST = "M, S, E = 100, 94, 57\nMS, ME, SE, MSE = 73, 24, 27, 22\nprint(152 - (M + S + E - MS - ME - SE + MSE))"
SECOND = "only = [100 - 73 - 24 + 22, 94 - 73 - 27 + 22, 57 - 24 - 27 + 22]\nprint(sum(only) + 51 + 2 + 5 + 22)"
ANSWER = "149 + 3 is 152, so \\boxed{3}."


class Hermes:
    """`<tool_call>` with JSON, as much of the form as the tests write."""

    def stops(self, turn_text: str) -> Sequence[str]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        calls = []
        for match in re.finditer(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL):
            value = json.loads(match[1])
            calls.append(ToolCall(value["name"], value["arguments"], span=match.span(), raw=match[0]))
        content = re.sub(r"<tool_call>.*?</tool_call>", "", text, flags=re.DOTALL)
        return ParsedTurn(tuple(calls), content, status="calls" if calls else "final")

    def render_results(self, records: Sequence[CallRecord]) -> Sequence[Message]:
        return [Message("tool", r.result.text, tool_call_id=r.call.id, name=r.call.name) for r in records]


def call_text(code: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'code_interpreter', 'arguments': {'code': code}})}</tool_call>"


SCRIPT = (f"I count them. {call_text(FIRST)}", f"I check it. {call_text(SECOND)}", ANSWER)


def environment(url: str, **options: Any) -> Environment:
    """An environment with the tool, built as a run builds it: by its name, from the registry."""
    component = load_registry().get("tools", "sandbox-fusion/code_interpreter").component
    model = component.load_options()
    toolset = as_toolset(
        component.load(), model(sandbox_fusion_url=url, probe=False, **options), make_build_context("code_interpreter")
    )
    return Environment("default", Hermes(), FakeChatFormat(), ToolBox([ToolEntry("code_interpreter", toolset)]))


def limits(**fields: Any) -> Limits:
    return Limits(**{"max_turn_tokens": 2000, "max_episode_tokens": 20_000, **fields})


async def play(env: Environment, count: int = 1, *, bounds: Limits | None = None) -> list[Episode]:
    """So many episodes at once."""
    engine = ScriptedEngine(SCRIPT)
    runs = [
        EpisodeRun(EpisodePlan(make_task(QUESTION, id=f"t{n}"), f"g{n}", 0, seed=n), env, engine, bounds or limits())
        for n in range(count)
    ]
    assert all(run.state is State.PENDING for run in runs)
    await env.tools.start()
    try:
        episodes = await asyncio.gather(*(run.run() for run in runs))
    finally:
        await env.tools.stop()
    assert all(run.state is State.RELEASED for run in runs)
    return list(episodes)


def executing(lock: threading.Lock) -> Callable[[dict[str, Any]], HttpReply]:
    """Runs the programs of these tests in the test's process."""

    def answer(request: dict[str, Any]) -> HttpReply:
        out = io.StringIO()
        with lock, contextlib.redirect_stdout(out):
            exec(request["code"], {})
        return HttpReply(finished(out.getvalue()))

    return answer


@pytest.fixture(params=["local server", "server of the test"])
def sandbox(request: pytest.FixtureRequest, stub: HttpStub) -> Iterator[Callable[[Callable[[str], Any]], Any]]:
    """`sandbox(work)` gives what the coroutine function `work` gives, called with a sandbox's address."""
    if request.param == "server of the test":
        stub.answer = executing(threading.Lock())
        yield lambda work: asyncio.run(work(stub.url))
        return
    pytest.importorskip("toolrl_plugin_python", reason="the local server needs the plugin `python`")
    from toolrl_plugin_sandbox_fusion.runner import ProgramRunner
    from toolrl_plugin_sandbox_fusion.server import SandboxServer, SandboxServerSettings

    try:
        runner = ProgramRunner(python=sys.executable, languages=["python"])
    except ConfigError as error:
        pytest.skip(f"programs can't be isolated here: {error}")

    async def with_server(work: Callable[[str], Any]) -> Any:
        async with SandboxServer(runner, SandboxServerSettings(port=0, workers=2)) as server:
            return await work(server.url)

    yield lambda work: asyncio.run(with_server(work))


def test_over_size_case(stub: HttpStub) -> None:
    """A turn that is cut off ends the episode; a call that was never finished doesn't run."""
    (episode,) = asyncio.run(play(environment(stub.url), bounds=limits(max_turn_tokens=40)))
    assert episode.stop_reason == "max_tokens"
    assert [message.role for message in episode.messages] == ["user", "assistant"]
    assert episode.messages[1].content == SCRIPT[0][:40]
    assert (episode.calls, episode.rewards, stub.requests) == ((), (), [])


def test_tool_call_basic_case(sandbox: Callable[[Callable[[str], Any]], Any]) -> None:
    (episode,) = sandbox(lambda url: play(environment(url)))
    assert [message.role for message in episode.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [record.result.text for record in episode.calls] == ["3\n", "149\n"]
    assert [message.content for message in episode.messages if message.role == "tool"] == ["3\n", "149\n"]
    assert [record.result.error for record in episode.calls] == [None, None]
    assert episode.stop_reason == "no_call"
    assert episode.final_text == ANSWER


def test_tool_call_batch_case(
    request: pytest.FixtureRequest, sandbox: Callable[[Callable[[str], Any]], Any], stub: HttpStub
) -> None:
    count = 100 if "server of the test" in request.node.name else 8
    episodes = sandbox(lambda url: play(environment(url, num_workers=20, rate_limit=10), count))
    assert len(episodes) == count
    for episode in episodes:
        assert [record.result.text for record in episode.calls] == ["3\n", "149\n"]
        assert len(episode.messages) == 6
        assert episode.stop_reason == "no_call"
    assert stub.most_at_once <= 10


def test_rotten_code_execution(stub: HttpStub) -> None:
    """One of twenty fails in every way there is: the others are answered, and no place is lost."""
    bad = [
        HttpReply(b"broken", 500),
        HttpReply(b"{"),
        HttpReply(drop=True),
        HttpReply(b"", 503),
        HttpReply(finished("", "ValueError", 1)),
        HttpReply(finished(status="SandboxError", run_result=None)),
    ]
    for reply in bad:
        found = asyncio.run(_calls(stub, 20, rotten={10: reply}, num_workers=10, rate_limit=6, patience=0))
        assert [text for n, text in enumerate(found) if n != 10] == [f"{n}\n" for n in range(20) if n != 10]
        assert found[10] != "10\n"
        assert found[10] is not None
    assert stub.most_at_once <= 6


async def _calls(
    stub: HttpStub, count: int, *, rotten: dict[int, HttpReply] | None = None, **options: Any
) -> list[Any]:
    """The answers to so many calls at once, by the tool box; None for one that isn't answered."""

    def answer(request: dict[str, Any]) -> HttpReply:
        stub.meet(options["rate_limit"])
        return (rotten or {}).get(int(request["code"]), HttpReply(finished(f"{request['code']}\n")))

    stub.answer = answer
    env = environment(stub.url, **options)
    await env.tools.start()
    try:
        async with env.tools.open(make_task(), make_episode_context()) as session:
            calls = [ToolCall("code_interpreter", {"code": str(n)}, id=str(n)) for n in range(count)]
            return [record.result.text for record in await session.answer(calls)]
    finally:
        await env.tools.stop()
