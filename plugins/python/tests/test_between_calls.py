"""Nothing of an episode's code runs between its calls, however it hides."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from toolrl_plugin_python.tool import PythonToolset

ENDED_FIRST_THREAD = """
import ctypes, os, struct, threading, time
handle = os.open("tick", os.O_CREAT | os.O_RDWR)
def work():
    while True:
        os.pwrite(handle, struct.pack("d", time.monotonic()), 0)
        time.sleep(0.001)
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=work).start()
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
while not os.pread(handle, 8, 0):
    time.sleep(0.01)
"""
LOOK_AT_TICK = """
time.sleep(0.2)
print(time.monotonic() - struct.unpack("d", os.pread(handle, 8, 0))[0] > 0.4)
"""
# Machine code: clone(CLONE_VM | SIGCHLD), and what called it exits; the child counts and does it again. Each of them is
# there for some twenty microseconds.
QUICK_FORKS = """
import ctypes, mmap, struct, time
counter = ctypes.c_uint32(0)
clone = bytes.fromhex("bf11010000 31f6 31d2 4531d2 4531c0 b838000000 0f05 85c0")
count = bytes.fromhex("f041ff01")
leave = bytes.fromhex("31ff b83c000000 0f05")
loop = count + clone
loop += bytes([0x74, 256 - (len(loop) + 2)])
loop += bytes([0x78, 256 - (len(loop) + 2 - len(count))])
begin = clone + bytes.fromhex("7401c3") + bytes.fromhex("49b9") + struct.pack("Q", ctypes.addressof(counter))
block = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
block.write(begin + loop + leave)
address = ctypes.addressof(ctypes.c_char.from_buffer(block))
begun = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
if begun < 0:
    raise PermissionError
while counter.value < 100:
    time.sleep(0.01)
"""
LOOK_AT_COUNTER = """
before = counter.value
time.sleep(0.2)
print(before > 0 and counter.value == before)
"""


@pytest.mark.parametrize(
    ("code", "look"), [(ENDED_FIRST_THREAD, LOOK_AT_TICK), (QUICK_FORKS, LOOK_AT_COUNTER)], ids=["thread", "forks"]
)
def test_nothing_goes_on_between_calls(
    tool: Callable[..., Any], episode: Any, isolation: str, code: str, look: str
) -> None:
    if code is QUICK_FORKS and os.uname().machine != "x86_64":
        pytest.skip("machine code of x86_64")

    async def work(toolset: PythonToolset) -> list[str]:
        said = []
        for _ in range(3):
            async with episode(toolset) as tell:
                began = await tell(code)
                if "PermissionError" in began.text:
                    pytest.skip("a single process is all that can be isolated here")
                await asyncio.sleep(0.5)
                said.append((await tell(look)).text)
        return said

    said = tool(work, persistent=True, isolation=isolation)
    # Where it can't be stopped the interpreter is ended, and the state with it.
    assert all(text == "True" or "NameError" in text for text in said), said
