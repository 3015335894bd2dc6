"""Episodes that a function plays, from its requests to the recorded tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import EngineError
from toolrl.types import ToolCall
from toolrl_plugin_gateway.options import PythonOptions
from toolrl_plugin_gateway.python_harness import PythonHarness
from toolrl_testing.fakes import ScriptedEngine, make_build_context

pytest.importorskip("openai")
AGENT = """
import asyncio, json
from openai import AsyncOpenAI, OpenAI
from toolrl.protocols import Outcome
from toolrl.types import Score

client = None
TOOLS = [{"type": "function", "function": {"name": "double", "parameters": {"type": "object"}}}]

async def play(episode):
    global client
    client = client or AsyncOpenAI(api_key="none")
    api = client.with_options(base_url=episode.base_url, api_key=episode.api_key)
    messages = episode.messages
    while True:
        asked = {"model": episode.model, "messages": messages, "tools": TOOLS}
        message = (await api.chat.completions.create(**asked)).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = str(2 * json.loads(call.function.arguments)["x"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

def blocking(episode):
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as api:
        api.chat.completions.create(model="agent", messages=episode.messages)
        with OpenAI(base_url=episode.base_url, api_key=episode.reward_key) as reports:
            reports.post("/reward", body={"reward": 0.5}, cast_to=object)

async def scored(episode):
    await play(episode)
    episode.notes["seen"] = [message["role"] for message in episode.messages[:1]]
    return Outcome("mine", Score(2.0))

async def crashing(episode):
    await play(episode)
    raise ValueError("a bug")

async def forgiving(episode):
    try:
        await play(episode)
    except Exception:
        return "I give up"

async def swallowing(episode, caught=Exception):
    # Its last request has something that the gateway refuses.
    api = AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key)
    await api.chat.completions.create(model="agent", messages=episode.messages)
    try:
        await api.chat.completions.create(model="agent", messages=episode.messages, n=2)
    except caught:
        return "done"

async def waiting(episode):
    await swallowing(episode)
    await asyncio.sleep(600)

async def raising(episode):
    await swallowing(episode, ())

async def unread(episode):
    # Its only request goes to another route.
    try:
        await AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key).completions.create(model="a", prompt="x")
    except Exception:
        return "done"

async def unaware(episode):
    # Refusals in between don't matter, nor does a route that isn't the model's.
    await swallowing(episode)
    api = AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key)
    await api.chat.completions.create(model="agent", messages=episode.messages)
    try:
        await api.embeddings.create(model="a", input="x")
    except Exception:
        return "done"

async def cached(episode):
    return "done"

async def cut(episode):
    # As strands does where a turn was cut.
    api = AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key)
    answer = await api.chat.completions.create(model="agent", messages=episode.messages)
    if answer.choices[0].finish_reason == "length":
        raise ValueError("the model was cut")
    return answer.choices[0].message.content

async def judged(episode):
    # A cut turn, and another role's after it.
    api = AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key)
    await api.chat.completions.create(model="agent", messages=episode.messages)
    await api.chat.completions.create(model="judge", messages=episode.messages, max_tokens=1)

async def hanging(episode):
    await play(episode)
    await asyncio.sleep(600)

wrong = 3
"""


@pytest.fixture
def agent(tmp_path: Path) -> str:
    (tmp_path / "agent.py").write_text(AGENT)
    return str(tmp_path / "agent.py")


def double(x: int) -> str:
    return f"<call>{json.dumps({'x': x})}</call>"


async def played(rig: Any, target: str, script: Any, *, episodes: int = 1, max_turns: int = 8, **options: Any) -> Any:
    harness = PythonHarness(PythonOptions(target=target, **options), make_build_context("python"))
    return await rig.episodes(harness, ScriptedEngine(script), episodes=episodes, max_turns=max_turns)


async def test_a_loop_of_twenty_lines_is_one_trajectory(rig: Any, agent: str) -> None:
    (episode,) = await played(rig, f"{agent}:play", [double(2), double(4), "8"])

    assert episode.failure is None
    assert (episode.answer, episode.stop_reason) == ("8", "final")
    (trajectory,) = episode.trajectories
    assert [turn.text for turn in trajectory.turns] == [double(2), double(4), "8"]
    assert [record.result.text for record in episode.calls] == ["4", "8"]
    assert all(isinstance(record.call, ToolCall) for record in episode.calls)
    assert episode.metrics["harness/requests"] == 3


async def test_a_plain_function_runs_in_a_thread_and_may_report_its_reward(rig: Any, agent: str) -> None:
    (episode,) = await played(rig, f"{agent}:blocking", ["hello"])
    assert episode.reward == 0.5
    assert episode.answer is None


async def test_a_crash_fails_the_episode_or_costs_what_the_config_says(rig: Any, agent: str) -> None:
    (failed,) = await played(rig, f"{agent}:crashing", ["hello"])
    (scored,) = await played(rig, f"{agent}:crashing", ["hello"], crash_reward=-1)

    assert failed.failure.fault == "harness"
    assert "ValueError: a bug" in failed.failure.message
    assert (scored.failure, scored.reward) == (None, -1.0)


async def test_an_agent_that_stops_at_a_limit_of_the_run_is_scored(rig: Any, agent: str) -> None:
    """Its SDK raises where the model refuses, and few loops catch that."""
    (turns,) = await played(rig, f"{agent}:play", [double(1)] * 9, max_turns=2)
    (caught,) = await played(rig, f"{agent}:forgiving", [double(1)] * 9, max_turns=2)
    (tokens,) = await played(rig, f"{agent}:play", [double(10**60)] * 999, max_turns=999)

    assert (turns.failure, turns.stop_reason, len(turns.turns)) == (None, "max_turns", 2)
    assert (caught.answer, caught.stop_reason) == ("I give up", "max_turns")
    assert (tokens.failure, tokens.stop_reason) == (None, "context_full")


@pytest.mark.parametrize("function", ["swallowing", "raising", "unread", "waiting"])
async def test_an_episode_whose_last_request_was_refused_fails_with_the_refusal(
    rig: Any, agent: str, function: str
) -> None:
    options = {"time_limit": 1} if function == "waiting" else {}
    (failed,) = await played(rig, f"{agent}:{function}", ["hello", "hello"], **options)
    assert failed.failure.fault == "harness"
    reason = "404 POST /v1/completions" if function == "unread" else "400 n is 2"
    assert f"its last request was refused: {reason}" in failed.failure.message
    if function in ("swallowing", "raising"):
        (scored,) = await played(rig, f"{agent}:{function}", ["hello", "hello"], crash_reward=-1)
        assert (scored.failure, scored.reward) == (None, -1.0)


async def test_a_refusal_that_an_agent_copes_with_is_no_failure(rig: Any, agent: str) -> None:
    (episode,) = await played(rig, f"{agent}:unaware", ["hello"] * 3)
    assert (episode.failure, episode.answer, episode.stop_reason) == (None, "done", "final")
    assert episode.metrics["harness/refused"] == 2


async def test_an_agent_that_asks_nothing_is_told_why_that_may_be(rig: Any, agent: str) -> None:
    (episode,) = await played(rig, f"{agent}:cached", ["hello"])
    assert "without asking the model" in episode.failure.message
    assert "cache" in episode.failure.message


@pytest.mark.parametrize(
    ("function", "length", "stop"),
    [
        ("cut", 600, "max_tokens"),
        ("forgiving", 600, "max_tokens"),
        ("judged", 600, "max_tokens"),
        ("judged", 5, "final"),
    ],
)
async def test_an_episode_that_ends_in_a_cut_turn_is_truncated(
    rig: Any, agent: str, function: str, length: int, stop: str
) -> None:
    """Also if its agent raises there, or asks another role before it ends."""
    (episode,) = await played(rig, f"{agent}:{function}", ["x" * length] * 2, roles={"judge": "critic"})
    assert (episode.failure, episode.stop_reason) == (None, stop)


async def test_an_agent_that_hangs_is_ended_and_scored(rig: Any, agent: str) -> None:
    (episode,) = await played(rig, f"{agent}:hanging", ["hello"], time_limit=1)
    assert (episode.failure, episode.stop_reason) == (None, "timeout")


@pytest.mark.parametrize("function", ["play", "forgiving"])
async def test_a_failure_of_the_engine_is_blamed_on_it(rig: Any, agent: str, function: str) -> None:
    def broken(prompt: str) -> str:
        raise EngineError("out of memory")

    (episode,) = await played(rig, f"{agent}:{function}", broken)
    assert (episode.failure.fault, episode.stop_reason) == ("engine", "error")


async def test_256_episodes_at_once(rig: Any, agent: str) -> None:
    engine = ScriptedEngine(lambda prompt: "8" if "8" in prompt else double(4), latency=0.2)
    harness = PythonHarness(PythonOptions(target=f"{agent}:play"), make_build_context("python"))
    episodes = await rig.episodes(harness, engine, episodes=256)

    assert {(it.answer, it.failure, len(it.trajectories), len(it.turns)) for it in episodes} == {("8", None, 1, 2)}
    assert engine.most_at_once > 128


async def test_a_model_that_no_request_names_is_told_at_the_end(
    rig: Any, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    await played(rig, f"{agent}:play", ["8"], roles={"agent": "agent", "user-simulatr": "user"})
    (line,) = [record.getMessage() for record in caplog.records if "options.roles" in record.getMessage()]
    assert "'user-simulatr'" in line
    assert "'agent'" not in line
