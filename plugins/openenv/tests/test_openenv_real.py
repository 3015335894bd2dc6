"""Real OpenEnv servers, made of openenv's own classes, on loopback."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from openenv_help import RealServer, box_of, episode, options, turn

from toolrl.errors import ToolsetError
from toolrl.parsing.flags import EndFlags
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.truncate import token_cut
from toolrl.types import ParsedTurn, ToolCall
from toolrl_plugin_openenv.toolset import build
from toolrl_testing import FakeChatFormat, ScriptedEngine, make_build_context, make_task
from toolrl_testing.fakes import FakeParser

Real = Callable[..., RealServer]
pytestmark = pytest.mark.usefixtures("real")


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


async def test_a_tool_environment_from_reset_to_done(real: Real) -> None:
    async with box_of(options(real("vault").url)) as box, episode(box) as session:
        assert {spec.name for spec in session.specs()} == {"look", "add", "open_vault", "break_down", "wait"}
        assert await session.opening() == []
        (looked,) = await session.answer([call("look")])
        assert re.fullmatch(r"\d{4}", looked.result.text)
        (wrong,) = await session.answer([call("open_vault", code="0")])
        assert (wrong.result.text, wrong.result.reward, wrong.result.done) == ("Nothing happens.", -0.25, False)
        opened, after = await session.answer([call("open_vault", code=looked.result.text), call("look")])
        assert (opened.result.text, opened.result.reward, opened.result.done) == ("It opens.", 1.0, True)
        assert (after.result.error, after.result.reward) == ("unavailable", None)
        assert await session.rewards() == []


async def test_errors_of_tools_are_answers_that_say_what_to_do(real: Real) -> None:
    box = box_of(options(real("vault").url), policy={"validate": False})
    async with box as made, episode(made) as session:
        raised, misread, bad, wrong, unknown = await session.answer(
            [
                call("break_down", how="on purpose"),
                call("break_down", how="key not found"),
                call("add", a="x", b=2),
                call("add", a=1),
                call("nothing"),
            ]
        )
        assert (raised.result.error, misread.result.error) == ("tool_error", "tool_error")
        assert "failed: Error calling tool 'break_down': on purpose" in raised.result.text
        for record in (bad, wrong):
            assert record.result.error in ("bad_arguments", "tool_error")
            assert "'add'" in record.result.text
        assert unknown.result.error == "unknown_tool"


async def test_a_text_environment_from_reset_to_done(real: Real) -> None:
    async with box_of(options(real("guess").url, reset={"number": 7})) as box, episode(box) as session:
        (first,) = await session.opening()
        assert first.content == "Guess my number, from 1 to 20."
        said = []
        for word in ("10", "ten", "666", "5", "7"):
            reply = await session.respond(turn(word))
            assert reply is not None
            said.append((reply.messages[0].content, reply.reward, reply.done))
        assert said == [
            ("Lower.", 0.125, False),
            ("'ten' is no whole number. Say a number.", None, False),
            ("The environment couldn't do that: the game broke", None, False),
            ("Higher.", 0.125, False),
            ("Right!", 1.0, True),
        ]
        assert await session.respond(turn("8")) is None


async def test_an_action_that_the_environments_own_check_refuses(real: Real) -> None:
    """The server can't report it and ends the session; no episode fails for what a model writes."""
    async with box_of(options(real("guess").url, reset={"number": 7})) as box, episode(box) as session:
        await session.opening()
        replies = [await session.respond(turn(word)) for word in ("5", "-1", "6")]
        said = [(it.messages[0].content, it.reward, it.done) for it in replies if it is not None]
        refused = said[1][0]
        assert refused.startswith("That is no valid action")
        assert said == [("Higher.", 0.125, False), (refused, None, True)]
        assert await session.rewards() == []
    async with box_of(options(real("guess").url, mode="action")) as box, episode(box) as session:
        low, bad = await session.answer([call("act", guess=1), call("act", guess=-1)])
        assert (low.result.error, bad.result.error, bad.result.done) == (None, "bad_arguments", True)


async def test_a_group_starts_from_one_state(real: Real) -> None:
    async with box_of(options(real("vault").url)) as box:
        codes: dict[str, set[str]] = {}
        for name in ("a", "b", "c"):
            for number in range(3):
                async with episode(box, number, seed=number, id=name) as session:
                    (record,) = await session.answer([call("look")])
                    codes.setdefault(name, set()).add(record.result.text)
        assert [len(found) for found in codes.values()] == [1, 1, 1]
        assert len(set.union(*codes.values())) > 1
        kwargs = {"openenv": {"create_kwargs": {"code": "opensesame"}}}
        async with episode(box, tools_kwargs=kwargs) as session:
            assert (await session.answer([call("look")]))[0].result.text == "opensesame"


async def test_a_server_that_dies_ends_its_episodes_and_comes_back_for_others(real: Real) -> None:
    server = RealServer("guess", 8)
    server.start()
    try:
        async with box_of(options(server.url, reconnect={"attempts": 300, "first_delay": 0.1, "max_delay": 1})) as box:
            async with episode(box) as session:
                await session.opening()
                await session.respond(turn("1"))
                server.kill()
                with pytest.raises(ToolsetError, match="lost"):
                    await session.respond(turn("2"))
                with pytest.raises(ToolsetError, match="lost"):
                    await session.rewards()
            starting = asyncio.to_thread(server.start)
            async with asyncio.TaskGroup() as scope:
                scope.create_task(starting)
                async with episode(box) as session:
                    assert len(await session.opening()) == 1
    finally:
        server.kill()


# Whole episodes.


class LineParser(FakeParser):
    """`call NAME JSON` is a call."""

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        match = re.match(r"call (\w+) (.*)", text)
        if match is None:
            return ParsedTurn(content=text)
        return ParsedTurn((ToolCall(match[1], json.loads(match[2])),), status="calls")


def environment(name: str, url: str, **more: Any) -> Environment:
    chat = FakeChatFormat()
    toolset = build(options(url, **more), make_build_context("openenv"))
    # Results of at most 256 tokens.
    box = ToolBox([ToolEntry("openenv", toolset, policy=PolicyOptions(max_output_tokens=256))], cut=token_cut(chat))
    return Environment(name, LineParser(), chat, box, end_flags=EndFlags(()), max_turns=6)


async def test_two_environments_routed_by_task_type_in_one_batch(real: Real) -> None:
    def speak(prompt: str) -> str:
        if "Guess my number" in prompt:
            return "3" if "<|assistant|>2" in prompt else "2"
        codes = re.findall(r"<\|tool\|>(\d{4})", prompt)
        return f'call open_vault {{"code": "{codes[-1]}"}}' if codes else "call look {}"

    environments = {
        "vault": environment("vault", real("vault").url),
        "guess": environment("guess", real("guess").url, reset={"number": 3}),
    }
    for made in environments.values():
        await made.tools.start()
    try:
        tasks = [make_task("Play.", id=str(n), environment=("vault", "guess")[n % 2]) for n in range(6)]
        runner = Runner(ScriptedEngine(speak), environments)
        groups = await runner.run(tasks, 4, Limits(200, 4000), round_id="test")
    finally:
        for made in environments.values():
            await made.tools.stop()
    for group in groups:
        for item in group.episodes:
            assert item.failure is None, item.failure
            assert item.stop_reason == "tool_done"
            entries = [(entry.turn, entry.source, entry.value) for entry in item.rewards]
            if item.environment == "vault":
                assert entries == [(1, "step:open_vault", 1.0)]
            else:
                assert entries == [(0, "step:environment", 0.125), (1, "step:environment", 1.0)]
    states = {group.episodes[0].turns[0].calls[0].result.text for group in groups if group.task.environment == "vault"}
    assert len(states) == 3


# The command.
