"""What a toolset may do in its first step and after it: each has to end as it would under a plain `async with
asyncio.timeout()` around a plain `await`."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import ToolsetError
from toolrl.tools.promptly import Begun
from toolrl.tools.tool_session import awaited, blamed

_seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


async def begun(work: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    first = Begun(work)
    if first.ended:
        return first.value
    async with asyncio.timeout(seconds):
        return await first.rest()


async def plainly(work: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    async with asyncio.timeout(seconds):
        return await work


STEPS = ("now", "sleep", "later", "inner limit", "group", "generator", "context", "own cancel", "swallow", "raise",
         "cancelled", "forever")  # fmt: skip


async def acts(steps: list[str], said: list[str]) -> str:
    for step in steps:
        said.append(step)
        try:
            await _act(step)
        finally:
            said.append(f"after {step}: {_seen.get()}")
    return "end"


async def _act(step: str) -> None:
    match step:
        case "sleep":
            await asyncio.sleep(0)
        case "later":
            await asyncio.sleep(0.01)
        case "inner limit":
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(3600)
            except TimeoutError:
                pass
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
        case "generator":
            async for _ in _numbers():
                break
        case "context":
            _seen.set("something")
        case "own cancel":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        case "swallow":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        case "raise":
            try:
                raise KeyError("first")
            except KeyError as error:
                raise ValueError("second") from error
        case "cancelled":
            raise asyncio.CancelledError("of its own")
        case "forever":
            await asyncio.sleep(3600)


async def _numbers() -> AsyncIterator[int]:
    for number in range(2):
        await asyncio.sleep(0)
        yield number


class HastyLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while something runs, and nobody waits for a timer: the machine's load changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def hasty(timeout: float | None = None) -> Any:
            self._now += timeout or 0.0
            return select(timeout if timeout is None else 0)

        self._selector.select = hasty  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now


def outcome(
    how: Callable[[Coroutine[Any, Any, Any], float | None], Coroutine[Any, Any, Any]], steps: list[str], cancel: int
) -> tuple[Any, ...]:
    """What came of it, what was said on the way, and what the task and its context are left with. `cancel`: after so
    many rounds of the loop the task is cancelled."""
    said: list[str] = []

    async def whole() -> tuple[Any, ...]:
        task = asyncio.current_task()
        assert task is not None
        try:
            result: tuple[Any, ...] = ("value", await how(acts(steps, said), 1.0))
        except BaseException as error:  # noqa: BLE001 - it is compared
            cause, context = error.__cause__, error.__context__
            result = (type(error), str(error), type(cause), type(context))
        return (*result, _seen.get(), task.cancelling())

    async def main() -> tuple[Any, ...]:
        task = asyncio.create_task(whole())
        for _ in range(cancel):
            await asyncio.sleep(0)
        if cancel:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return ("never began",)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with asyncio.Runner(loop_factory=HastyLoop) as runner:
            found = runner.run(main())
    return (*found, said)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=4), st.sampled_from([0, 0, 1, 2, 3]))
def test_a_first_step_without_a_limit_changes_nothing(steps: list[str], cancel: int) -> None:
    assert outcome(begun, steps, cancel) == outcome(plainly, steps, cancel)


def test_what_is_never_awaited_further_is_closed_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    said: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            said.append("closed")

    async def main() -> None:
        first = Begun(waits())
        assert not first.ended
        rest = first.rest()
        del first, rest
        gc.collect()
        assert said == ["closed"]

    asyncio.run(main())
    assert not [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)]


def test_a_manager_entered_in_the_first_step_is_left_in_the_same_task_and_context() -> None:
    @asynccontextmanager
    async def managed() -> AsyncIterator[str]:
        token = _seen.set("inside")
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
            yield "session"
            await asyncio.sleep(0)
        _seen.reset(token)  # Raises in another context.

    async def main() -> str:
        manager = managed()
        got = await blamed("game", "opening", awaited(manager.__aenter__()), 60)
        assert _seen.get() == "inside"
        await blamed("game", "closing", awaited(manager.__aexit__(None, None, None)), 60)
        return f"{got} {_seen.get()}"

    assert asyncio.run(main()) == "session nothing"


@pytest.mark.parametrize("what", [None, 3, "text"])
def test_what_cannot_be_awaited_is_the_toolsets_fault(what: Any) -> None:
    with pytest.raises(ToolsetError, match="didn't start: TypeError"):
        asyncio.run(blamed("game", "didn't start", awaited(what)))
