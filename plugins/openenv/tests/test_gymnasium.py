"""The toolset `gymnasium`: classes by name, and real Gymnasium environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openenv_games import CLOSED, HOLD
from openenv_help import box_of, episode, turn, until

from toolrl.errors import ConfigError, ToolsetError
from toolrl_plugin_openenv.gym_toolset import build, check
from toolrl_plugin_openenv.options import GymnasiumOptions
from toolrl_testing import make_build_context

COUNTER = "openenv_games:Counter"


@pytest.fixture(autouse=True)
def _quiet(nothing_is_left: None) -> Iterator[None]:
    CLOSED.clear()
    HOLD.clear()
    yield
    HOLD.set()


def options(**more: Any) -> GymnasiumOptions:
    return GymnasiumOptions.model_validate({"target": COUNTER, **more})


async def say(session: Any, word: str) -> tuple[str, float | None, bool]:
    reply = await session.respond(turn(word))
    return reply.messages[0].content, reply.reward, reply.done


async def test_an_episode_from_reset_to_done() -> None:
    given = options(kwargs={"start": 10}, reset={"start": 20, "seed": 5})
    async with box_of(given, name="game") as box:
        async with episode(box) as session:
            assert session.specs() == ()
            (first,) = await session.opening()
            assert first.content == "seed 5, options {'start': 20}"
            assert await say(session, "go") == ("21 go", 5.25, False)
            assert await say(session, "stop") == ("22 stop", 5.5, True)
            assert await session.respond(turn("more")) is None
        async with episode(box, tools_kwargs={"game": {"create_kwargs": {"start": 0, "seed": 9}}}) as session:
            (first,) = await session.opening()
            assert first.content == "seed 9, options {'start': 0}"
            assert (await say(session, "late"))[2]


async def test_what_an_environment_raises_is_answered_and_three_in_a_row_fail() -> None:
    async with box_of(options()) as box, episode(box) as session:
        await session.opening()
        for _ in range(2):
            said, reward, done = await say(session, "raise")
            assert "KeyError: 'no such key'" in said
            assert (reward, done) == (None, False)
        assert (await say(session, "print"))[0] == "1 print"
        assert "finite" in (await say(session, "nan"))[0]
        await say(session, "raise")
        with pytest.raises(ToolsetError, match="none of the last 3 steps"):
            await session.respond(turn("raise"))


async def test_a_step_that_hangs_fails_its_episode_and_no_other() -> None:
    async with box_of(options(step_timeout=2.0, reset_timeout=100)) as box:
        async with episode(box) as session:
            await session.opening()
            with pytest.raises(ToolsetError, match="no answer to step within 2 s"):
                await session.respond(turn("hang"))
            with pytest.raises(ToolsetError, match="no answer"):
                await session.rewards()
        async with episode(box) as session:
            await session.opening()
            assert (await say(session, "go"))[0] == "1 go"
        HOLD.set()  # The thread that comes back late closes its environment.
        await until(lambda: len(CLOSED) == 3)


async def test_environments_in_threads_are_closed() -> None:
    async with box_of(options()) as box:
        assert CLOSED == [0]  # The look at the start.
        async with episode(box) as session:
            await session.opening()
            await say(session, "go")
        assert CLOSED == [0, 1]
        async with episode(box):
            pass
        assert CLOSED == [0, 1]


async def test_an_environment_that_cant_be_made_or_reset() -> None:
    for target in ("openenv_games:Nothing", "no_such_module:X"):
        toolset = build(options(target=target), make_build_context("game"))
        with pytest.raises(ToolsetError, match="can't be made"):
            await toolset.start()
        await toolset.stop()
    async with box_of(options(target="openenv_games:Broken")) as box, episode(box) as session:
        with pytest.raises(ToolsetError, match="no reset today"):
            await session.opening()


async def test_final_reward_and_choices() -> None:
    action = {"choices": {"forward": "go"}, "pattern": r"<(\w+)>", "invalid_reward": -0.5}
    async with box_of(options(reward="final", action=action)) as box, episode(box) as session:
        await session.opening()
        said, reward, _ = await say(session, "I go forward.")
        assert (reward, "forward" in said) == (-0.5, True)
        assert await say(session, "<stay> no, <forward>") == ("1 go", None, False)
        (entry,) = await session.rewards()
        assert (entry.turn, entry.value) == (None, 0.25)


# Gymnasium itself.


LAKE = {
    "id": "FrozenLake-v1",
    "kwargs": {"render_mode": "ansi", "is_slippery": False, "desc": ["SF", "HG"]},
    "render": True,
    "action": {"choices": ["left", "down", "right", "up"]},
}


async def test_a_real_environment_with_a_drawn_observation() -> None:
    pytest.importorskip("gymnasium", reason="pip install 'toolrl-plugin-openenv[gymnasium]'")

    async with (
        box_of(GymnasiumOptions.model_validate(LAKE)) as box,
        episode(box) as session,
    ):
        (first,) = await session.opening()
        assert "F" in first.content
        said, reward, done = await say(session, "swim")
        assert "left, down, right, up" in said
        said, reward, done = await say(session, "Right")
        assert ("(Right)" in said, reward, done) == (True, 0.0, False)
        said, reward, done = await say(session, "down")
        assert (reward, done) == (1.0, True)


async def test_numbers_that_are_no_action_and_choices_that_are_too_few() -> None:
    pytest.importorskip("gymnasium", reason="pip install 'toolrl-plugin-openenv[gymnasium]'")

    async with box_of(GymnasiumOptions.model_validate({**LAKE, "action": {}})) as box, episode(box) as session:
        await session.opening()
        assert "Discrete(4)" in (await say(session, "7"))[0]
        assert "no whole number" in (await say(session, "down"))[0]
        assert (await say(session, "2"))[1:] == (0.0, False)
    toolset = build(
        GymnasiumOptions.model_validate({**LAKE, "action": {"choices": ["left", "right"]}}),
        make_build_context("game"),
    )
    with pytest.raises(ConfigError, match="names 2 actions, and the environment has 4"):
        await toolset.start()
    await toolset.stop()
    assert "gymnasium" in check()
