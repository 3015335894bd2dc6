"""Retries: what is tried again, how long one waits, when one gives up."""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.errors import ArgumentsError, ToolError
from toolrl.tools import TransientToolError, parse_retry_after
from toolrl.tools.traits import ToolTraits
from toolrl.types import ToolCall
from toolrl_testing.fakes import make_episode_context


def failing(times: int, error: BaseException) -> Any:
    left = [times]

    async def respond(call: ToolCall) -> str:
        if left[0]:
            left[0] -= 1
            raise error
        return "found"

    return respond


def test_a_transient_error_is_tried_again_with_waits_that_grow(scene: Any, virtual: Any) -> None:
    busy = scene(
        failing(3, TransientToolError("busy")),
        {"retry": {"attempts": 4, "first_delay": 1, "jitter": 0, "max_delay": 3}},
    )
    record = virtual(busy.ask())
    assert (record.result.text, record.result.error) == ("found", None)
    assert busy.begun == pytest.approx([0, 1, 3, 6])
    assert record.result.metrics["policy/retries"] == 3


def test_after_the_last_attempt_the_model_reads_the_error(scene: Any, virtual: Any) -> None:
    busy = scene(failing(9, TransientToolError("The server is busy.")), {"retry": {"attempts": 2}})
    record = virtual(busy.ask())
    assert (record.result.text, record.result.error) == ("The server is busy.", "tool_error")
    assert len(busy.begun) == 2


@pytest.mark.parametrize(
    "error",
    [ToolError("no such page"), ArgumentsError("bad"), ValueError("crash"), ConnectionError("crash"), SystemExit(1)],
)
def test_nothing_else_is_tried_again(scene: Any, virtual: Any, error: BaseException) -> None:
    tool = scene(failing(1, error), {"retry": {}})
    assert virtual(tool.ask()).result.error is not None
    assert len(tool.begun) == 1


def test_the_servers_own_wish_is_honoured_also_above_the_longest_wait(scene: Any, virtual: Any) -> None:
    tool = scene(
        failing(1, TransientToolError("busy", retry_after=40)),
        {"retry": {"jitter": 0, "max_delay": 2, "max_seconds": 60}},
    )
    assert virtual(tool.ask()).result.text == "found"
    assert tool.begun == pytest.approx([0, 40])


def test_a_wish_beyond_the_calls_time_ends_it_at_once(scene: Any, virtual: Any) -> None:
    tool = scene(failing(1, TransientToolError("busy", retry_after=500)), {"retry": {"max_seconds": 60}})
    record = virtual(tool.ask())
    assert record.result.error == "tool_error"
    assert tool.begun == [0]


def test_a_time_out_is_tried_again_only_where_the_option_says_so_and_the_tool_allows_it(
    scene: Any, virtual: Any
) -> None:
    def slow_once() -> Any:
        left = [60.0, 0.0]

        async def respond(call: ToolCall) -> str:
            await asyncio.sleep(left.pop(0))
            return "found"

        return respond

    traits = ToolTraits(idempotent=True)
    policy = {"timeout": 1, "retry": {"on_timeout": True, "jitter": 0}}
    tool = scene(slow_once(), policy, traits=traits)
    assert virtual(tool.ask()).result.text == "found"
    tool = scene(slow_once(), {"timeout": 1, "retry": {}}, traits=traits)
    assert virtual(tool.ask()).result.error == "timeout"
    tool = scene(slow_once(), policy)
    assert virtual(tool.ask()).result.error == "timeout"


@pytest.mark.virtual_time
async def test_the_wait_is_cut_short_where_the_episode_is_cancelled(scene: Any) -> None:
    tool = scene(failing(1, TransientToolError("busy")), {"retry": {"first_delay": 100, "max_delay": 100}})
    task = asyncio.create_task(tool.ask())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() == pytest.approx(1)
    assert len(tool.begun) == 1


def test_chance_belongs_to_the_call_and_leaves_the_episodes_own_alone(scene: Any, virtual: Any) -> None:
    def times(episode: str) -> list[float]:
        tool = scene(failing(3, TransientToolError("busy")), {"retry": {"attempts": 4, "jitter": 1}})
        virtual(tool.ask(episode))
        return list(tool.begun)

    assert times("train-1/0/a#0") == times("train-1/0/a#0") != times("train-1/0/a#1")
    before = make_episode_context(seed=3).random.random()
    times("e")
    assert make_episode_context(seed=3).random.random() == before


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose own zone isn't HTTP's."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_retry_after_in_seconds_and_as_a_date() -> None:
    now = 1_000_000_000.0
    assert parse_retry_after("120") == 120
    assert parse_retry_after(" 1.5 ") == 1.5
    assert parse_retry_after(email.utils.formatdate(now + 90, usegmt=True), now=now) == 90
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now=now) == pytest.approx(7 * 24 * 3600)
    assert parse_retry_after(email.utils.formatdate(now - 90, usegmt=True), now=now) == 0
    assert parse_retry_after("-3") == 0
    for form in ("Sun, 09 Sep 2001 01:46:50 GMT", "Sunday, 09-Sep-01 01:46:50 GMT", "Sun Sep  9 01:46:50 2001"):
        assert parse_retry_after(form, now=now) == 10
    for nothing in (None, "", "soon", "nan", "99 Foo 99999 99:99:99", "\x00"):
        assert parse_retry_after(nothing) is None


@given(st.text() | st.from_regex(r"\w{3}, \d{1,3} \w{3} \d{1,6} \d\d:\d\d:\d\d [A-Z+\-0-9]{0,6}"))
def test_retry_after_is_total(value: str) -> None:
    seconds = parse_retry_after(value)
    assert seconds is None or 0 <= seconds <= 7 * 24 * 3600
