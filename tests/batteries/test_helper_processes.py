"""No call to a helper process gets the answer to another, whatever is written to the pipe of the answers.

Real helpers run `helper_mischief.py` (a tool's process, whose class rewards and data sets use too, an
interpreter): frames that are forged, doubled, truncated, mixed or missing, and children that reply, too. An
answer is that of its own call, or the call fails; the helper after it works.
"""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext
from toolrl.tools.process_tools import ProcessPool
from toolrl.tools.subprocess_pool import ProcessCrashError
from toolrl.types import ToolCall
from toolrl_testing import make_episode_context

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation and /proc")
MISCHIEF = Path(__file__).with_name("helper_mischief.py")
KINDS: Sequence[str] = runpy.run_path(str(MISCHIEF))["KINDS"]
SECONDS = 2.0
EXAMPLES = 15 if os.environ.get("TOOLRL_SLOW") else 4
Ask = Callable[[int, Sequence[str]], Any]
"""The answer to a call with a number, which is that number, and None for a failure."""

WORKER = """
from helper_mischief import caller, mischief
from toolrl.tools.subprocess_main import HEADER
import json

def act(number, how, reply):
    main = caller("main")
    body = json.dumps(reply).encode()
    for one in how:
        mischief(one, main["nonce"], lambda nonce: HEADER.pack(len(body), nonce) + body, main["replies"].write)
"""
TOOL = """
from toolrl.tools import tool
from worker_mischief import act

@tool(process=True)
def misbehave(number: int, how: list[str]) -> str:
    \"\"\"Does.\"\"\"
    act(number, how, {"result": {"text": str(number)}})
    return str(number)
"""
CELL = """
for one in {how}:
    token = caller("run")["request"]["token"].encode()
    mischief(one, token, lambda nonce: nonce + b" ok\\n", lambda data: os.write(3, data))
print("<{number}>")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """On the path of this process and of those that it starts."""
    (tmp_path / "helper_mischief.py").write_bytes(MISCHIEF.read_bytes())
    (tmp_path / "worker_mischief.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@asynccontextmanager
async def process_tool(folder: Path) -> AsyncIterator[Ask]:
    (folder / "misbehaving_tool.py").write_text(TOOL)
    pool = ProcessPool(1)

    async def ask(number: int, how: Sequence[str]) -> int | None:
        try:
            async with asyncio.timeout(SECONDS if how else None):
                result = await pool.call("misbehaving_tool:misbehave", {"number": number, "how": list(how)})
            return int(result.text)
        except (ProcessCrashError, TimeoutError):
            return None

    yield ask
    pool.close_idle()


@asynccontextmanager
async def interpreter(folder: Path) -> AsyncIterator[Ask]:
    tool = pytest.importorskip("toolrl_plugin_python.tool")
    options = tool.PythonOptions(persistent=True, timeout=SECONDS)
    toolset = tool.build_python(options, BuildContext(name="python"))
    try:
        await toolset.start()
    except ConfigError as error:
        pytest.skip(str(error))
    context = make_episode_context()
    async with toolset.open(context.task, context) as session:

        async def ask(number: int, how: Sequence[str]) -> int | None:
            code = MISCHIEF.read_text() + CELL.format(how=list(how), number=number)
            result = await session.call(ToolCall("python", {"code": code}))
            found = set(re.findall(r"<(\d+)>", result.text))
            return None if result.error or not found else int(found.pop()) if len(found) == 1 else -1

        yield ask
    await toolset.stop()


HELPERS: dict[str, Callable[[Path], AbstractAsyncContextManager[Ask]]] = {
    helper.__name__: helper for helper in (process_tool, interpreter)
}


@pytest.mark.parametrize("helper", HELPERS)
def test_an_answer_is_that_of_its_own_call(helper: str, folder: Path) -> None:
    number = 0
    with asyncio.Runner() as runner:
        opened = HELPERS[helper](folder)
        ask = runner.run(opened.__aenter__())

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(st.lists(st.sampled_from(KINDS), max_size=2), min_size=1, max_size=3))
        def check(script: list[list[str]]) -> None:
            nonlocal number
            for how in [*script, [], []]:
                number += 3
                found = runner.run(ask(number, how))
                assert found in (None, number), how
            for _ in range(20):  # what comes late may hit more calls than one
                number += 3
                found = runner.run(ask(number, []))
                if found is not None:
                    break
            assert found == number, "a helper works after another has misbehaved"

        check()
        runner.run(opened.__aexit__(None, None, None))
