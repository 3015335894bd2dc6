"""Sessions that lose something: slow answers, broken connections, nonsense, environments that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openenv_help import box_of, episode, options, turn, until
from openenv_wire_server import TOOLS, Drop, FakeEnv, FakeServer, error, observation

from toolrl.errors import ToolsetError
from toolrl.types import ToolCall

pytestmark = pytest.mark.usefixtures("nothing_is_left")
COUNT = ToolCall("count", {})


def steps_of(message: dict[str, Any], what: str = "call_tool") -> bool:
    return message["type"] == "step" and message["data"].get("type") == what


# Slow answers.


async def test_a_step_that_is_too_slow_fails_the_episode() -> None:
    go = asyncio.Event()

    async def script(env: FakeEnv, message: dict[str, Any]) -> Any:
        if steps_of(message) and message["data"]["arguments"].get("text") == "slow":
            await go.wait()
        return None

    async with FakeServer(tools=TOOLS).running() as server:
        server.script = script
        given = options(server.url, step_timeout=1.0, close_timeout=0.2)
        async with box_of(given) as box, episode(box) as session:
            slow, after = await session.answer([ToolCall("echo", {"text": "slow"}), COUNT])
            assert (slow.result.error, after.result.error) == ("unavailable", "unavailable")
            assert "no answer within 1 s" in slow.result.text
            with pytest.raises(ToolsetError, match="no answer within"):
                await session.rewards()
            go.set()


# Long answers.


async def test_an_answer_that_is_too_long_is_told_as_such_and_fails_its_episode_alone() -> None:
    def script(env: FakeEnv, message: dict[str, Any]) -> Any:
        size = int(message["data"]["arguments"].get("text", 0)) if steps_of(message) else 0
        return observation({"tool_name": "echo", "result": "x" * size, "error": None}) if size else None

    async with FakeServer(tools=TOOLS).running() as server:
        server.script = script
        given = options(server.url, max_message_bytes=2 * 2**20)
        async with box_of(given) as box, episode(box) as session, episode(box) as other:
            (cut,) = await session.answer([ToolCall("echo", {"text": "1500000"})])
            assert "[500000 characters left out]" in cut.result.text
            (long,) = await session.answer([ToolCall("echo", {"text": "3000000"})])
            assert "longer than 2097152 bytes (option max_message_bytes" in long.result.text
            with pytest.raises(ToolsetError, match="max_message_bytes"):
                await session.rewards()
            (count,) = await other.answer([COUNT])
            assert count.result.text == "1"


# Lost connections.


async def test_a_lost_connection_ends_the_episode_as_failed() -> None:
    async with FakeServer(tools=TOOLS).running() as server, box_of(options(server.url)) as box:
        server.script = lambda env, message: Drop if steps_of(message) and env.count == 1 else None
        async with episode(box) as session:
            first, second, third = await session.answer([COUNT, COUNT, COUNT])
            assert (first.result.text, first.result.done) == ("1", False)
            for lost in (second, third):
                assert (lost.result.error, lost.result.done) == ("unavailable", True)
            assert "lost" in second.result.text
            with pytest.raises(ToolsetError, match="lost"):
                await session.rewards()
        server.script = lambda env, message: Drop if message["type"] == "reset" else None
        async with episode(box) as session:
            with pytest.raises(ToolsetError, match="lost"):
                await session.opening()
        server.script = None
        async with episode(box) as session:
            assert (await session.answer([COUNT]))[0].result.text == "1"


UNSAID = [error("SESSION_ERROR", "Unable to serialize unknown type: <class 'ValueError'>"), Drop]


def refuses(word: str) -> Any:
    """A server that can't say what is wrong with an action, and hangs up."""

    def script(env: FakeEnv, message: dict[str, Any]) -> Any:
        data = message.get("data", {})
        said = data.get("text") or data.get("arguments", {}).get("text")
        return UNSAID if message["type"] == "step" and said == word else None

    return script


async def test_an_action_that_costs_the_session_ends_a_talk_as_played() -> None:
    async with FakeServer().running() as server:
        server.script = refuses("bad")
        given = options(server.url, action={"invalid_reward": -0.5})
        async with box_of(given) as box, episode(box) as session:
            await session.opening()
            replies = [await session.respond(turn(word)) for word in ("a", "bad", "b")]
            assert replies[1] is not None
            assert "valid action" in replies[1].messages[0].content
            assert (replies[1].reward, replies[1].done, replies[2]) == (-0.5, True, None)
            assert await session.rewards() == []
        await until(lambda: not server.open)


def second(answer: Any) -> Any:
    """Gives this to the second step."""
    return lambda env, message: answer if steps_of(message) and env.count == 1 else None


def twice(env: Any, message: Any) -> Any:
    """Gives the first step's answer twice."""
    return [env.step(message["data"])] * 2 if steps_of(message) and env.count == 0 else None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (second("nonsense"), "isn't JSON"),
        (second('{"type": "observation", "data": {"observation": {}, "reward": NaN}}'), "finite"),
        (second(error("SESSION_ERROR", "the environment is gone")), "the environment is gone"),
        (twice, "no request asked for"),
    ],
)
async def test_nonsense_in_the_midst_of_an_episode_fails_it(script: Any, said: str) -> None:
    async with FakeServer(tools=TOOLS).running() as server:
        server.script = script
        async with box_of(options(server.url)) as box, episode(box) as session:
            (first,) = await session.answer([COUNT])
            assert first.result.text == "1"
            (record,) = await session.answer([COUNT])
            assert (record.result.error, record.result.done) == ("unavailable", True)
            with pytest.raises(ToolsetError, match=said):
                await session.rewards()


async def test_a_reset_that_fails_fails_the_episode() -> None:
    async with FakeServer(tools=TOOLS).running() as server:
        server.script = lambda env, message: (
            error("EXECUTION_ERROR", "no such level") if message["type"] == "reset" else None
        )
        async with box_of(options(server.url)) as box, episode(box) as session:
            with pytest.raises(ToolsetError, match="no such level"):
                await session.opening()
        server.script = None
        async with box_of(options(server.url, reset={"x": float("nan")})) as box, episode(box) as session:
            with pytest.raises(ToolsetError, match="JSON can't hold"):
                await session.opening()


async def test_an_environment_that_makes_no_step_fails_the_talk() -> None:
    async with FakeServer().running() as server:
        server.script = lambda env, message: (
            error("EXECUTION_ERROR", "boom")
            if message["type"] == "step" and message["data"].get("text") == "bad"
            else None
        )
        async with box_of(options(server.url)) as box, episode(box) as session:
            await session.opening()
            for word in ("bad", "bad", "good", "bad", "bad"):
                reply = await session.respond(turn(word))
                assert reply is not None
                assert ("boom" in reply.messages[0].content) == (word == "bad")
            with pytest.raises(ToolsetError, match="none of the last 3 steps"):
                await session.respond(turn("bad"))
