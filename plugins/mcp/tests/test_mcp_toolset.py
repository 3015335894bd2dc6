"""The toolset as the rollout sees it: shared servers and servers of an episode, instances, secrets, selections."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ToolError, ToolsetError
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import ToolCall
from toolrl_plugin_mcp.options import McpOptions
from toolrl_testing import make_episode_context, make_task


def servers(rig: Any, *names: str, **options: Any) -> McpOptions:
    """Options of several raw servers."""
    entry = {"command": sys.executable, "args": [rig.raw]}
    return McpOptions.model_validate({"servers": dict.fromkeys(names, entry), **options})


# Shared servers.


async def test_instances_share_the_calls(rig: Any) -> None:
    async with rig.started(rig.options(instances=3)) as toolset:
        pids = [await rig.call(toolset, "pid") for _ in range(9)]
        assert sorted(Counter(pids).values()) == [3, 3, 3]
        busy = [asyncio.create_task(rig.call(toolset, "slow", seconds=60)) for _ in range(2)]
        while sum(one.in_flight for one in toolset.servers["raw"].connections) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        free = {await rig.call(toolset, "pid") for _ in range(4)}
        assert len(free) == 1  # the one without a call under way
        for call in busy:
            call.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        # A connection whose call was cancelled is asked whether it still works before it gets calls again.
        seen = set()
        async with asyncio.timeout(60):
            while len(seen) < 3:
                seen.add(await rig.call(toolset, "pid"))


# Servers of an episode.


async def test_each_episode_has_servers_of_its_own(rig: Any) -> None:
    async with rig.started(rig.options(session="episode")) as toolset:
        assert toolset.servers == {}

        async def episode(name: str) -> tuple[str, str]:
            async with rig.episode(toolset) as session:
                await session.call(ToolCall("raw-note", {"text": name}))
                notes = await session.call(ToolCall("raw-note", {"text": name}))
                return notes.text, (await session.call(ToolCall("raw-pid", {}))).text

        done = await asyncio.gather(*(episode(name) for name in "abc"))
        assert [notes for notes, _ in done] == ["a, a", "b, b", "c, c"]
        assert len({pid for _, pid in done}) == 3


async def test_an_episode_without_calls_starts_nothing(rig: Any, tmp_path: Path) -> None:
    log = tmp_path / "starts"
    code = f"import sys; open({str(log)!r}, 'a').write('x'); exec(open({rig.raw!r}).read())"
    options = rig.options(server={"command": sys.executable, "args": ["-c", code]}, session="episode")

    async with rig.started(options) as toolset:
        async with rig.episode(toolset) as session:
            assert "raw-echo" in [spec.name for spec in session.specs()]
        assert log.read_text() == "x"  # to list the tools
        async with rig.episode(toolset) as session:
            await asyncio.gather(*(session.call(ToolCall("raw-echo", {})) for _ in range(4)))
        assert log.read_text() == "xx"


async def test_a_crash_in_an_episode_is_its_own(rig: Any) -> None:
    toolset = rig.toolset(rig.options(session="episode"))
    await toolset.start()
    async with rig.episode(toolset) as one, rig.episode(toolset) as other:
        await one.call(ToolCall("raw-note", {"text": "a"}))
        await other.call(ToolCall("raw-note", {"text": "b"}))
        with pytest.raises(ToolError, match="was lost during the call"):
            await one.call(ToolCall("raw-crash", {}))
        assert (await one.call(ToolCall("raw-note", {"text": "c"}))).text == "c"  # a fresh process
        assert (await other.call(ToolCall("raw-note", {"text": "d"}))).text == "b, d"
    await toolset.stop()


async def test_a_server_that_doesnt_start_for_an_episode_fails_it(rig: Any, tmp_path: Path) -> None:
    switch = tmp_path / "broken"
    code = f"import os, sys; os.path.exists({str(switch)!r}) and sys.exit(9); exec(open({rig.raw!r}).read())"
    options = rig.options(server={"command": sys.executable, "args": ["-c", code]}, session="episode")

    async with rig.started(options) as toolset:
        switch.touch()
        async with rig.episode(toolset) as session:
            with pytest.raises(ToolError, match="didn't start: .*it ended"):
                await session.call(ToolCall("raw-echo", {}))
            with pytest.raises(ToolsetError, match="didn't start: it ended"):
                await session.reward()
            switch.unlink()
            assert (await session.call(ToolCall("raw-echo", {}))).text == "{}"
            assert await session.reward() is None


@pytest.mark.parametrize("seconds", [0.02, 0.3])
async def test_episodes_that_are_cancelled_leave_nothing(rig: Any, seconds: float) -> None:
    async with rig.started(rig.options(session="episode")) as toolset:
        before = asyncio.all_tasks()

        async def episode() -> None:
            async with rig.episode(toolset) as session:
                await session.call(ToolCall("raw-slow", {"seconds": 60}))

        episodes = [asyncio.create_task(episode()) for _ in range(4)]
        await asyncio.sleep(seconds)
        for one in episodes:
            one.cancel()
        results = await asyncio.gather(*episodes, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert asyncio.all_tasks() == before


# In a ToolBox.


async def test_a_lost_call_is_made_again_where_that_does_no_harm(rig: Any) -> None:
    policy = PolicyOptions.model_validate({"retry": {"attempts": 3, "first_delay": 0.01}})
    box = ToolBox([ToolEntry("mcp", rig.toolset(rig.options()), policy=policy)])
    await box.start()
    try:
        task = make_task()
        async with box.open(task, make_episode_context(task)) as session:
            items = [ToolCall("raw-slow", {"seconds": 0.5}), ToolCall("raw-crash", {})]
            slow, crash = await session.answer(items)
    finally:
        await box.stop()
    assert (slow.result.error, slow.result.text) == (None, '{"seconds": 0.5}')
    assert crash.result.error == "tool_error"


# Secrets.


async def test_secrets_stay_out_of_errors_and_logs(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = {"command": sys.executable, "args": [rig.toy], "env": {"KEY": "hunter2-secret"}}
    with caplog.at_level(logging.DEBUG):
        async with rig.started(rig.options(server=server)) as toolset:
            await rig.call(toolset, "say", text="my key is hunter2-secret")
            with pytest.raises(ToolError, match="was lost during the call"):
                await rig.call(toolset, "crash")
            assert await rig.call(toolset, "environment", name="KEY") == "hunter2-secret"  # an answer is no error
    assert "my key is ***" in caplog.text
    assert "hunter2-secret" not in "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("toolrl")
    )


@pytest.mark.parametrize("toy", ["streamable-http", "sse"], indirect=True)
async def test_headers_and_keys_stay_out_of_logs(rig: Any, toy: Any, caplog: pytest.LogCaptureFixture) -> None:
    server, process = toy
    secret = {"url": f"{server['url']}?key=hunter2-query", "headers": {"Authorization": "Bearer hunter2-header"}}
    with caplog.at_level(logging.DEBUG):
        async with rig.started(rig.options(server=secret)) as toolset:
            assert await rig.call(toolset, "add", a=1, b=2) == "3"
            process.kill()
            with pytest.raises((ToolError, ToolsetError)) as caught:
                await rig.call(toolset, "add", a=1, b=2)
            assert "hunter2" not in str(caught.value)
    for record in caplog.records:
        if not record.name.startswith("httpcore"):
            assert "hunter2" not in record.getMessage(), record
