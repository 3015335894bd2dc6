"""What answers at once needs no time limit, and what waits is awaited as ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolrl.errors import ToolsetError
from toolrl.tools.promptly import Begun, until
from toolrl.tools.tool_session import blamed


async def at_once(value: int) -> int:
    return value


async def later(values: list[asyncio.Task[None] | None]) -> str:
    values.append(asyncio.current_task())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    values.append(asyncio.current_task())  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        await asyncio.sleep(0.001)
    return "done"


def test_what_answers_at_once_has_ended_after_its_first_step() -> None:
    begun = Begun(at_once(3))
    assert begun.ended
    assert begun.value == 3


def test_the_rest_runs_in_the_same_task() -> None:
    async def main() -> None:
        seen: list[asyncio.Task[None] | None] = []
        begun = Begun(later(seen))
        assert not begun.ended
        assert await begun.rest() == "done"
        assert seen == [asyncio.current_task()] * 2

    asyncio.run(main())


def test_an_exception_of_any_step_comes_through() -> None:
    async def raises(wait: bool) -> None:
        if wait:
            await asyncio.sleep(0)
        raise KeyError("x")

    async def main() -> None:
        with pytest.raises(KeyError):
            Begun(raises(False))
        begun = Begun(raises(True))
        with pytest.raises(KeyError):
            await begun.rest()

    asyncio.run(main())


def test_a_cancellation_reaches_what_waits_and_its_cleanup_may_wait() -> None:
    said: list[str] = []

    async def waits() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            said.append("cleaned up")
            raise
        return "never"

    async def whole() -> str:
        begun = Begun(waits())
        return await begun.rest()

    async def main() -> None:
        task = asyncio.create_task(whole())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert said == ["cleaned up"]


def test_closing_closes_what_waits() -> None:
    said: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            said.append("closed")

    async def main() -> None:
        begun = Begun(waits())
        rest: Any = begun.rest()
        next(rest)
        rest.close()

    asyncio.run(main())
    assert said == ["closed"]


def test_the_limit_still_stops_what_waits_and_blames_it() -> None:
    async def waits() -> None:
        await asyncio.sleep(3600)

    with pytest.raises(ToolsetError, match=r"reply failed: no answer within 0.01 s"):
        asyncio.run(blamed("game", "reply failed", waits(), 0.01))


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_until_waits_for_the_end_of_a_task(seconds: float | None) -> None:
    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(0.001, 7))
        await until(task, seconds)
        assert task.result() == 7
        await until(task, seconds)

    asyncio.run(main())


def test_until_gives_up_and_leaves_the_task_alone() -> None:
    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(3600))
        await until(task, 0.001)
        assert not task.done()
        waiter = asyncio.create_task(until(task))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert not task.done()
        assert not task.cancelling()
        task.cancel()

    asyncio.run(main())
