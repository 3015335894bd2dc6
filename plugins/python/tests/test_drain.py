"""Reading without end, keeping a bounded part."""

from __future__ import annotations

import asyncio
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl_plugin_python.drain import Drain


def drained(pieces: list[bytes], head: int, tail: int) -> Drain:
    """A drain that read these pieces to the end."""

    async def run() -> Drain:
        read, write = os.pipe()
        drain = Drain(read, head, tail, on_flood=lambda: None)
        for piece in pieces:
            os.write(write, piece)
            await asyncio.sleep(0)
        os.close(write)
        drain.rest()
        return drain

    return asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=12), st.integers(0, 60), st.integers(0, 60))
def test_the_beginning_and_the_end_are_kept(pieces: list[bytes], head: int, tail: int) -> None:
    whole = b"".join(pieces)
    drain = drained(pieces, head, tail)
    first, last = drain.parts()
    assert drain.total == len(whole)
    assert first == whole[:head]
    assert first + last == whole if len(whole) <= head + tail else last == whole[len(whole) - tail :]
    assert drain.left_out == max(0, len(whole) - head - tail)


def test_a_flood_is_told_once_and_memory_stays_small() -> None:
    async def run() -> tuple[int, int]:
        read, write = os.pipe()
        os.set_blocking(write, False)
        told = 0

        def flooded() -> None:
            nonlocal told
            told += 1

        drain = Drain(read, 100, 100, on_flood=flooded)
        for _ in range(400):
            try:
                os.write(write, b"x" * 20_000)
            except BlockingIOError:
                await asyncio.sleep(0)
        drain.rest()
        kept = sum(len(part) for part in (drain._head, drain._tail))
        drain.close()
        os.close(write)
        return told, kept

    told, kept = asyncio.run(run())
    assert told == 1
    assert kept < 150_000
