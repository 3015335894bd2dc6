"""Sessions: what the model gets in each mode, who waits for whom, and that nothing is left or mixed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from openenv_help import box_of, episode, options, turn, until
from openenv_wire_server import TOOLS, FakeEnv, FakeServer

from toolrl.errors import ToolsetError
from toolrl.types import ToolCall
from toolrl_plugin_openenv.toolset import build
from toolrl_testing import make_build_context

pytestmark = pytest.mark.usefixtures("nothing_is_left")
COUNT = ToolCall("count", {})


async def all_of(one: Callable[[int], Coroutine[Any, Any, None]], count: int) -> None:
    """All at once; the first that fails cancels the others."""
    async with asyncio.TaskGroup() as scope:
        for number in range(count):
            scope.create_task(one(number))


# Modes.


async def test_tools_are_listed_called_and_rewarded() -> None:
    async with FakeServer(tools=TOOLS).running() as server, box_of(options(server.url)) as box:
        async with episode(box) as session:
            assert [spec.name for spec in session.specs()] == ["count", "echo"]
            assert await session.opening() == []
            records = await session.answer([COUNT, ToolCall("echo", {"text": "é"}), COUNT])
            assert [(it.result.text, it.result.reward) for it in records] == [("1", 0.5), ("é", 0.5), ("3", 0.5)]
            assert await session.rewards() == []
            assert await session.respond(turn("bye")) is None
        assert server.open == []


async def test_a_talk_ends_with_the_environment() -> None:
    async with (
        FakeServer().running() as server,
        box_of(options(server.url)) as box,
        episode(box) as session,
    ):
        assert session.specs() == ()
        (first,) = await session.opening()
        assert (first.role, first.content) == ("user", "Ready.")
        replies = [await session.respond(turn(word)) for word in ("a", " b ", "c")]
        assert [(it.messages[0].content, it.reward, it.done) for it in replies if it] == [
            ("1: a", 1.0, False),
            ("2: b", 2.0, False),
            ("3: c", 3.0, True),
        ]
        assert await session.respond(turn("d")) is None
        assert await session.rewards() == []


async def test_the_action_as_a_tool() -> None:
    async with FakeServer().running() as server:
        given = options(server.url, mode="action", tool_name="say")
        async with box_of(given) as box, episode(box) as session:
            (spec,) = session.specs()
            assert spec.name == "say"
            assert spec.parameters["required"] == ["text"]
            assert "metadata" not in spec.parameters["properties"]
            good, bad = await session.answer([ToolCall("say", {"text": "x"}), ToolCall("say", {})])
            assert (good.result.text, good.result.reward) == ("1: x", 1.0)
            assert bad.result.error == "bad_arguments"


async def test_action_field_constants_choices_and_invalid_reward() -> None:
    seen: list[Any] = []

    def script(env: FakeEnv, message: dict[str, Any]) -> Any:
        if message["type"] == "step" and "type" not in message["data"]:
            seen.append(message["data"])
        return None

    async with FakeServer().running() as server:
        server.script = script
        action = {"field": "text", "constants": {"kind": "word"}, "choices": ["yes", "no"], "invalid_reward": -1.0}
        async with box_of(options(server.url, action=action)) as box, episode(box) as session:
            await session.opening()
            wrong = await session.respond(turn("maybe"))
            right = await session.respond(turn("YES"))
            assert wrong is not None
            assert right is not None
            assert (wrong.reward, wrong.done) == (-1.0, False)
            assert "yes, no" in wrong.messages[0].content
            assert right.messages[0].content == "1: yes"
    assert seen == [{"kind": "word", "text": "yes"}]


async def test_headers_and_query_reach_the_server_and_no_error() -> None:
    async with FakeServer().running() as server:
        given = options(f"{server.url}/?key=geheim", headers={"Authorization": "Bearer tokentoken"})
        async with box_of(given) as box, episode(box) as session:
            await session.opening()
        assert {request.headers["Authorization"] for request in server.requests} == {"Bearer tokentoken"}
        assert {request.path for request in server.requests} == {"/ws?key=geheim", "/schema?key=geheim"}
    toolset = build(given.model_copy(update={"start_timeout": 0.2}), make_build_context("openenv"))
    with pytest.raises(ToolsetError) as raised:
        await toolset.start()
    assert "geheim" not in str(raised.value)
    assert "tokentoken" not in repr(given)


# Waiting.


async def test_episodes_wait_for_a_free_session_in_their_order(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with FakeServer(tools=TOOLS, sessions=3).running() as server:
            async with box_of(options(server.url), policy={"session_timeout": 30}) as box:
                ended: list[int] = []

                async def one(number: int) -> None:
                    async with episode(box, number) as session:
                        await session.opening()
                        for _ in range(3):
                            (record,) = await session.answer([COUNT])
                            assert record.result.error is None
                        ended.append(number)

                await all_of(one, 24)
                assert sorted(ended) == list(range(24))
                assert server.most_open == 3
                # Three at once, in order: nobody is overtaken by more than those who are open beside him.
                assert all(abs(place - number) <= 6 for place, number in enumerate(ended)), ended
            assert server.open == []
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "max_concurrent_envs" in caplog.text


async def test_waiting_for_a_place_has_a_limit_of_its_own() -> None:
    async with FakeServer(tools=TOOLS).running() as server:
        given = options(server.url, max_sessions=1, queue_timeout=1.0)
        # The session's own time limit is shorter than the wait, and doesn't count.
        async with box_of(given, policy={"session_timeout": 0.5}) as box, episode(box, 0):
            with pytest.raises(ToolsetError, match="queue_timeout"):
                async with episode(box, 1):
                    pass


async def test_a_server_full_of_others_sessions_is_tried_again() -> None:
    async with FakeServer(tools=TOOLS, sessions=1).running() as server, box_of(options(server.url)) as box:

        async def one() -> None:
            async with episode(box) as session:
                assert (await session.answer([COUNT]))[0].result.text == "1"

        other = FakeEnv(server)
        server.open.append(other)
        async with asyncio.TaskGroup() as scope:
            scope.create_task(one())
            scope.create_task(one())
            await until(lambda: server.refused >= 3)
            server.open.remove(other)


# Nothing is left, nothing is mixed.


async def test_episodes_that_are_cancelled_leave_no_session() -> None:
    async with FakeServer(tools=TOOLS, sessions=4).running() as server:
        async with box_of(options(server.url, close_timeout=1.0)) as box:

            async def one(number: int) -> None:
                async with episode(box, number) as session:
                    await session.opening()
                    await session.answer([COUNT, COUNT])

            for ticks in range(16):
                tasks = [asyncio.create_task(one(number)) for number in range(6)]
                for _ in range(ticks):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.001 * (ticks % 5))
                for task in tasks:
                    task.cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(it is None or isinstance(it, asyncio.CancelledError) for it in done), done
            await one(0)
            toolset: Any = box._entries[0].toolset
            assert toolset.pool.sessions == 0
        await until(lambda: not server.open)


async def test_256_episodes_at_once_never_mix() -> None:
    async with FakeServer(tools=TOOLS).running() as server, box_of(options(server.url)) as box:
        together = asyncio.Barrier(256)

        async def one(number: int) -> None:
            async with episode(box, number, id=f"task-{number}") as session:
                await session.opening()
                await together.wait()
                for step in range(1, 4):
                    echo = ToolCall("echo", {"text": f"{number}/{step}"})
                    said, count = await session.answer([echo, COUNT])
                    assert said.result.text == f"{number}/{step}"
                    assert count.result.text == str(2 * step)

        await all_of(one, 256)
        assert server.most_open == 256
        assert len(set(server.order)) == 256
        assert server.open == []
