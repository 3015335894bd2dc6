"""Tools that do what tools must not do, for `fault_battery.py`. A module of its own, as workers import it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from typing import Any

from toolrl.tools import ArgumentsError, Tool, ToolError, TransientToolError, tool
from toolrl.types import Media, ToolResult, ToolSpec

TEN_MEGABYTES = 10_000_000
LARGE = "0123456789" * (TEN_MEGABYTES // 10)


class Ugly(BaseException):
    """An exception that can't even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class OwnError(ToolError):
    """Leaves out what the base class does."""

    def __init__(self) -> None:
        pass


def _error(how: int) -> BaseException:
    kinds: list[BaseException] = [
        ValueError("bad page"),
        SystemExit(3),
        asyncio.CancelledError("its own"),
        RecursionError("too deep"),
        StopIteration(),
        Ugly(),
        OwnError(),
        ToolError(""),
        ArgumentsError("x is odd"),
        ExceptionGroup("several", [OSError("one"), KeyError("two")]),
        OSError(LARGE),
        MemoryError(),
    ]
    return kinds[how % len(kinds)]


@tool
async def raises(how: int) -> str:
    """Raises on the event loop."""
    await asyncio.sleep(0)
    raise _error(how)


@tool
def raises_in_thread(how: int) -> str:
    """Raises in a thread."""
    raise _error(how)


@tool
async def hangs(how: int) -> str:
    """Never answers, or takes its time to stop, or doesn't want to."""
    try:
        await asyncio.sleep(3600)
    finally:
        if how % 3 == 1:
            await asyncio.sleep(0.05)
    return "late"


@tool
async def stubborn(how: int) -> str:
    """Swallows its cancellation for a while."""
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        try:
            await asyncio.sleep(end - time.monotonic())
        except asyncio.CancelledError:
            continue
    return "late"


@tool
def hangs_in_thread(how: int) -> str:
    """Blocks a thread that nothing can stop."""
    time.sleep(0.6)
    return "late"


@tool
def large(how: int) -> Any:
    """Answers ten megabytes."""
    return [LARGE, {"text": LARGE}, ToolResult(LARGE), (LARGE, 0.5)][how % 4]


@tool
async def wrong(how: int) -> Any:
    """Answers what no tool may."""
    return [
        None,
        object(),
        b"\xff",
        {1, 2},
        (1, 2, 3, 4),
        ("text", "high"),
        ("text", float("nan")),
        ("text", 1e300),
        ("text", 0.0, {"m": float("inf")}),
        ToolResult(None),  # type: ignore[arg-type]
        ToolResult("text", media=5),  # type: ignore[arg-type]
        ToolResult("text", media=(Media("image", None), 3)),  # type: ignore[arg-type]
        ToolResult("text", metrics=[1]),  # type: ignore[arg-type]
        ToolResult("text", error=5),  # type: ignore[arg-type]
        "\ud800 \x00",
        float("inf"),
    ][how % 16]


_flapping = random.Random(0)


@tool(idempotent=True)
async def flaps(how: int) -> str:
    """Fails half of the time, in ways that may pass."""
    if _flapping.random() < 0.5:
        return "up"
    if how % 5 == 0:
        await asyncio.sleep(3600)
    raise TransientToolError("down", retry_after=0.01 if how % 2 else None)


@tool
async def down(how: int) -> str:
    """Has been broken for long."""
    raise ConnectionError("refused")


@tool
async def crowded(how: int) -> str:
    """Has little room."""
    await asyncio.sleep(0.02)
    return "served"


@tool(pure=True)
async def looked_up(how: int) -> str:
    """Says the same for the same."""
    await asyncio.sleep(0.01)
    return f"value {how}"


@tool(process=True)
def computes(how: int) -> int:
    """Works in a process."""
    return how * how


@tool(process=True)
def dies(how: int) -> str:
    """Takes its process with it, or hangs in it."""
    if how % 4 == 0:
        os._exit(3)
    if how % 4 == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how % 4 == 2:
        os.abort()
    while True:
        pass


class Ledger(Tool):
    """Counts its stages, and does some of them badly."""

    def __init__(self, options: Any = None, context: Any = None) -> None:
        super().__init__(options, context)
        self.spec = ToolSpec("ledger", "Keeps a state.", {"type": "object", "properties": {"how": {"type": "integer"}}})
        self.stages: Counter[str] = Counter()
        self.open: dict[str, str] = {}
        self.out_of_order = 0
        self.lock = threading.Lock()

    def step(self, instance: str, stage: str, allowed: tuple[str | None, ...]) -> int:
        """Note a stage; how often it ran."""
        with self.lock:
            self.stages[stage] += 1
            self.out_of_order += self.open.get(instance) not in allowed
            if stage == "release":
                self.open.pop(instance, None)
            else:
                self.open[instance] = stage
            return self.stages[stage]

    async def create(self, instance_id: str, **kwargs: Any) -> None:
        self.step(instance_id, "create", (None,))

    async def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> str:
        how = self.step(instance_id, "execute", ("create", "execute"))
        if how % 7 == 0:
            await asyncio.sleep(3600)
        if how % 11 == 0:
            raise ValueError("torn page")
        return f"line {how}"

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        self.step(instance_id, "calc_reward", ("create", "execute"))
        return 0.5

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        how = self.step(instance_id, "release", ("calc_reward",))
        await asyncio.sleep(0)
        if how % 50 == 0:
            raise OSError("already gone")


class ThreadLedger(Ledger):
    """The same in threads."""

    def __init__(self, options: Any = None, context: Any = None) -> None:
        super().__init__(options, context)
        self.spec = ToolSpec("thread_ledger", self.spec.description, self.spec.parameters)

    def create(self, instance_id: str, **kwargs: Any) -> None:  # type: ignore[override]
        self.step(instance_id, "create", (None,))

    def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> str:  # type: ignore[override]
        how = self.step(instance_id, "execute", ("create", "execute"))
        if how % 23 == 0:
            time.sleep(0.3)
        if how % 11 == 0:
            raise ValueError("torn page")
        return f"line {how}"

    def calc_reward(self, instance_id: str, **kwargs: Any) -> float:  # type: ignore[override]
        self.step(instance_id, "calc_reward", ("create", "execute"))
        return 0.5

    def release(self, instance_id: str, **kwargs: Any) -> None:  # type: ignore[override]
        if self.step(instance_id, "release", ("calc_reward",)) % 50 == 0:
            raise OSError("already gone")
