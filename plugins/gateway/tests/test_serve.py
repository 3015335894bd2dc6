"""Episodes that an agent elsewhere begins, plays and ends."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from toolrl.errors import ConfigError
from toolrl.rollouts.environment import Limits
from toolrl.rollouts.runner import Runner
from toolrl_plugin_gateway.serve import EpisodeServer, serve
from toolrl_testing.fakes import ScriptedEngine, make_task


async def post(url: str, key: str, body: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def status_of(port: int, path: bytes, key: bytes) -> int:
    """A request with a key of any bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST %s HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\nContent-Length: 2\r\n\r\n{}" % (path, key))
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


def test_other_machines_need_a_key() -> None:
    assembly: Any = SimpleNamespace(runner=SimpleNamespace(gate=lambda: None))
    with pytest.raises(ConfigError, match="needs a key"):
        EpisodeServer(assembly, host="0.0.0.0", port=0, key=None, time_limit=1)


async def test_an_agent_begins_episodes_of_a_served_model_and_gets_them_scored(rig: Any) -> None:
    recorded: list[Any] = []
    environments = {"default": rig.environment(None)}
    runner = Runner(ScriptedEngine(lambda prompt: "hello"), environments, on_episode=recorded.append)
    rows = [make_task(id="row")]
    events = SimpleNamespace(run_start=lambda: None, step_end=recorded.append)
    assembly: Any = SimpleNamespace(
        runner=runner, environments=environments, limits=Limits(500, 2000), events=events, dataset=lambda name: rows
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, key = f"http://127.0.0.1:{port}", "key-of-the-run"
    make = partial(EpisodeServer, host="127.0.0.1", port=port, key=key, time_limit=30)
    serving = asyncio.create_task(serve(assembly, make))
    await rig.until(lambda: environments["default"].harness and environments["default"].harness.gateway.url)

    own = {"messages": [{"role": "user", "content": "What is 6 * 7?"}], "answer": "42"}
    ended = []
    for task in (0, own):
        status, begun = await post(f"{url}/episodes", key, {"task": task})
        assert status == 200
        asked = {"model": "agent", "messages": begun["task"]["messages"]}
        assert (await post(f"{begun['base_url']}/chat/completions", begun["api_key"], asked))[0] == 200
        ended.append((await post(f"{url}/episodes/{begun['id']}/end", key, {"answer": "42", "reward": 0.5}))[1])
    assert (await post(f"{url}/episodes/{begun['id']}/end", key, {}))[0] == 404
    _, begun = await post(f"{url}/episodes", key, {"task": 0})
    broken = (await post(f"{url}/episodes/{begun['id']}/end", key, {"error": "it broke"}))[1]
    assert "it broke" in broken["failure"]
    solved = {"messages": [*own["messages"], {"role": "assistant", "content": "42"}]}
    orphan = {"messages": [*own["messages"], {"role": "tool", "content": "42"}]}
    places = ({**own, "environment": "absent"}, {**own, "environment": ["default"]})
    for task in (1, False, *places, solved, orphan, {"messages": []}, {}):
        assert (await post(f"{url}/episodes", key, {"task": task}))[0] == 400
    assert (await post(f"{url}/episodes", "another-key", {"task": 0}))[0] == 401
    for path in (b"/episodes", b"/v1/messages", b"/v1/reward"):
        assert await status_of(port, path, b"\xff\xfe") == 401
    await post(f"{url}/episodes", key, {"task": 0})  # It is never ended.
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving

    assert [(it["id"], it["reward"], it["failure"], it["turns"]) for it in ended] == [
        ("served/0/row#0", 0.5, None, 1),
        ("served/1/1#0", 0.5, None, 1),
    ]
    assert [it.id for it in recorded[:2]] == [it["id"] for it in ended]
    assert recorded[1].task.answer == "42"
    assert recorded[-1].metrics == {"episodes": 3.0}
