"""Episodes that an agent elsewhere takes, plays and ends."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from toolrl.rollouts.environment import Limits
from toolrl.rollouts.runner import Runner
from toolrl_plugin_gateway.external import ExternalHarness
from toolrl_plugin_gateway.options import ExternalOptions
from toolrl_plugin_gateway.serve import serve
from toolrl_testing.fakes import ScriptedEngine, make_build_context, make_task


def harness(**options: Any) -> ExternalHarness:
    return ExternalHarness(ExternalOptions(**{"port": 0, "key": "key-of-the-run", **options}), make_build_context())


async def post(url: str, key: str, body: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def agent(url: str, end: dict[str, Any]) -> dict[str, Any]:
    """Plays the next episode."""
    status, begun = await post(f"{url}/episodes/next", "key-of-the-run", {})
    assert status == 200
    asked = {"model": begun["model"], "messages": begun["task"]["messages"]}
    status, _ = await post(f"{begun['base_url']}/chat/completions", begun["api_key"], asked)
    assert status == 200
    assert (await post(f"{url}/episodes/{begun['id']}/end", "key-of-the-run", end))[0] == 200
    return dict(begun)


async def test_agents_take_episodes_and_end_them(rig: Any) -> None:
    offered = harness()
    running = asyncio.create_task(rig.episodes(offered, ScriptedEngine(lambda prompt: "hello"), episodes=3))
    await rig.until(lambda: offered.gateway.url)
    url = offered.gateway.url
    ends = [{"answer": "42", "reward": 0.5}, {}, {"error": "it broke"}]
    begun = [await agent(url, end) for end in ends[:2]]
    assert (await post(f"{url}/episodes/{begun[0]['id']}/end", "key-of-the-run", {}))[0] == 410
    begun.append(await agent(url, ends[2]))
    episodes = await running

    assert len({it["id"] for it in begun}) == 3
    assert begun[0]["task"] == {"id": "task-0", "messages": [{"role": "user", "content": "What is 2 + 2?"}]}
    assert sorted((it.answer or "", it.reward) for it in episodes) == [("", 0.0), ("", 0.0), ("42", 0.5)]
    (failure,) = (it.failure for it in episodes if it.failure)
    assert "it broke" in failure.message


async def test_an_episode_that_is_never_ended_times_out_and_its_time_begins_when_it_is_taken(rig: Any) -> None:
    offered = harness(time_limit=2)
    running = asyncio.create_task(rig.episodes(offered, ScriptedEngine(lambda prompt: "hello"), episodes=1))
    await rig.until(lambda: offered.gateway.url)
    await asyncio.sleep(2.2)
    assert not running.done()
    _, begun = await post(f"{offered.gateway.url}/episodes/next", "key-of-the-run", {})
    await post(f"{begun['base_url']}/chat/completions", begun["api_key"], {"messages": begun["task"]["messages"]})
    (episode,) = await running
    assert (episode.stop_reason, episode.failure) == ("timeout", None)


async def test_no_episode_and_a_wrong_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolrl_plugin_gateway.external.POLL_SECONDS", 0.1)
    offered = harness()
    await offered.start()
    assert (await post(f"{offered.gateway.url}/episodes/next", "key-of-the-run", {}))[0] == 204
    assert (await post(f"{offered.gateway.url}/episodes/next", "another-key", {}))[0] == 401
    await offered.stop()


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
    serving = asyncio.create_task(serve(assembly, ExternalOptions(port=port, key=key, time_limit=30)))
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
    for task in (1, False, {**own, "environment": "absent"}, {**own, "environment": ["default"]}):
        assert (await post(f"{url}/episodes", key, {"task": task}))[0] == 400
    assert (await post(f"{url}/episodes", "another-key", {"task": 0}))[0] == 401
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
    assert recorded[-1].metrics == {"episodes": 2.0}
