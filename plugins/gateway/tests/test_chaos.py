"""Many agents at once that are killed, hang, leave, and read half of what they asked for: each episode ends, what was
sampled is recorded, and no process, connection, task or generation is left."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from toolrl_plugin_gateway.command_harness import CommandHarness
from toolrl_plugin_gateway.options import CommandOptions, PythonOptions
from toolrl_plugin_gateway.python_harness import PythonHarness
from toolrl_testing.fakes import ScriptedEngine, make_build_context

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="children are ended on Linux")]
AGENT = '''
import http.client, json, os, random, signal, sys, threading, time
from urllib.parse import urlsplit

def open_request(url, key, messages, stream):
    there = urlsplit(url)
    connection = http.client.HTTPConnection(there.hostname, there.port, timeout=60)
    body = json.dumps({"model": "agent", "messages": messages, "stream": stream})
    connection.request("POST", there.path + "/chat/completions", body, {"Authorization": f"Bearer {key}"})
    return connection

def ask(url, key, messages, stream=False):
    connection = open_request(url, key, messages, stream)
    answer = connection.getresponse().read()
    connection.close()
    if not stream:
        messages.append(json.loads(answer)["choices"][0]["message"])

def act(way, url, key, messages):
    """Two turns, with something amiss between them."""
    ask(url, key, messages)
    messages.append({"role": "user", "content": "Go on."})
    if way == "half":
        connection = open_request(url, key, messages, True)
        connection.getresponse().read(20)
        connection.close()
    elif way == "leave":
        open_request(url, key, messages, False).close()
    elif way == "hang":
        connection = open_request(url, key, messages, True)
        (time.sleep(600) if __name__ == "__main__" else connection.getresponse().read(20))
    elif way in ("kill", "crash"):
        connection = open_request(url, key, messages, True)
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        connection.close()
        raise ValueError("broken")
    ask(url, key, messages)
    return way

async def play(episode):
    import asyncio
    ways = ["fine", "half", "leave", "crash", "hang"]
    way = ways[int(episode.api_key[-4:], 16) % len(ways)]
    episode.notes["way"] = way
    if way == "hang":
        await asyncio.to_thread(ask, episode.base_url, episode.api_key, episode.messages)
        await asyncio.sleep(600)
    return await asyncio.to_thread(act, way, episode.base_url, episode.api_key, episode.messages)

if __name__ == "__main__":
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    ways = ["fine", "half", "leave", "kill", "crash", "hang"]
    way = ways[int(key[-4:], 16) % len(ways)]
    print(act(way, url, key, json.load(sys.stdin)["messages"]))
'''
OUTCOMES = {
    "fine": ("final", None),
    "half": ("final", None),
    "leave": ("final", None),
    "hang": ("timeout", None),
    "crash": ("error", "broken"),
    "kill": ("error", "ended with status 137"),
}


class VersionedEngine(ScriptedEngine):
    """Its weights change all the time."""

    async def generate(self, *given: Any, **options: Any) -> Any:
        self.version += 1
        return await super().generate(*given, **options)


def engine() -> VersionedEngine:
    return VersionedEngine(lambda prompt: "x" * random.Random(prompt).randrange(1, 9), latency=0.05)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process and no descriptor more than before."""
    this = psutil.Process()
    before, children = this.num_fds(), this.children()
    yield
    assert this.children(recursive=True) == children
    assert not [it for it in this.net_connections() if it.status == "LISTEN"]
    assert this.num_fds() <= before + 5, [it.path for it in this.open_files()]


def check(episodes: list[Any], engine: VersionedEngine, ways: list[str]) -> None:
    assert not engine._running
    sampled = {(it.session, it.prompt): it.generation for it in engine.generated}
    ended = Counter()
    for episode in episodes:
        way = next((way for way in ways if _is(way, episode)), "unknown")
        assert way != "unknown", (episode.stop_reason, episode.failure, episode.answer, episode.notes)
        ended[way] += 1
        for trajectory in episode.trajectories:
            for turn in trajectory.turns:
                start, end = turn.segments[0].tokens
                found = [it for (_, prompt), it in sampled.items() if prompt == trajectory.ids[:start]]
                assert any(trajectory.weight_versions[start:end] == it.versions for it in found)
    assert set(ended) == set(ways), ended


def _is(way: str, episode: Any) -> bool:
    stop, failure = OUTCOMES[way]
    if episode.stop_reason != stop or (episode.failure is None) != (failure is None):
        return False
    return episode.failure.message.count(failure) > 0 if failure else way == "hang" or episode.answer == way


async def test_processes_that_are_killed_hang_and_leave(rig: Any, nothing_left: None, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    options = {"command": [sys.executable, str(tmp_path / "agent.py")], "answer": "stdout", "time_limit": 15}
    harness = CommandHarness(CommandOptions(**options, processes=32), make_build_context("command"))
    played = await rig.episodes(harness, scripted := engine(), episodes=64)
    assert len(played) == 64
    check(played, scripted, list(OUTCOMES))


async def test_256_functions_that_hang_and_leave(rig: Any, nothing_left: None, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    options = PythonOptions(target=f"{tmp_path}/agent.py:play", time_limit=10)
    harness = PythonHarness(options, make_build_context("python"))
    played = await rig.episodes(harness, scripted := engine(), episodes=256)
    assert len(played) == 256
    check(played, scripted, [way for way in OUTCOMES if way != "kill"])
