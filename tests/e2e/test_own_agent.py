"""An agent with a loop of its own is trained through the gateway, and served to one that runs elsewhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

for name in ("aiohttp", "toolrl_plugin_gateway"):
    pytest.importorskip(name, reason=f"{name} isn't installed")
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "own-agent"


def test_the_examples_loop_is_trained_on_what_it_sampled(own_place: Any) -> None:
    pytest.importorskip("openai", reason="the agent uses it")
    harness = {"use": "gateway/python", "options": {"target": f"{EXAMPLE}/with_openai.py:play"}}
    changes = {
        "model": {"path": "runs/warm"},
        "data": {"eval": None},
        "environments": {"default": {"tools": [], "harness": harness, "max_turns": 2}},
        "algorithm": {"group_size": 2},
        "trainer": {"steps": 1, "prompts_per_step": 2, "save_every": 0},
    }
    run = own_place.train(changes)
    (line,) = run.metrics_lines("train")
    assert line.metrics["errors/rate"] == 0
    assert 0 < line.metrics["logprob_mismatch/max"] < 1e-5
    assert {len(it.episode.trajectories) for it in run.episodes(kind="train")} == {1}
    assert line.metrics["reward/harness/requests"] >= 1


def test_a_model_is_served_to_an_agent_that_runs_elsewhere(own_place: Any, process_environment: Any) -> None:
    config = own_place.config({"model": {"path": "runs/warm"}, "run": {"name": "served"}, "observers": []})
    command = [sys.executable, "-m", "toolrl", "gateway", "serve", config, "--port", "0"]
    server = subprocess.Popen(
        command, cwd=own_place.folder, env=process_environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url, key = (server.stdout.readline().split()[-1] for _ in range(2))
        row = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "answer": "5"}
        ended = []
        for task in (0, row):
            begun = post(f"{url}/episodes", key, {"task": task})
            asked = {"model": begun["model"], "messages": begun["task"]["messages"]}
            assert post(f"{begun['base_url']}/chat/completions", begun["api_key"], asked)["choices"]
            ended.append(post(f"{url}/episodes/{begun['id']}/end", key, {"answer": "5", "reward": 0.5}))
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 143

    assert [it["failure"] for it in ended] == [None, None]
    assert ended[1]["rewards"]["reward:harness"] == 0.5
    assert ended[1]["turns"] == 1
    stored = [it.episode for it in own_place.run("served").episodes()]
    assert [it.id for it in stored] == [it["id"] for it in ended]
    assert [it.reward for it in stored] == [it["reward"] for it in ended]


def post(url: str, key: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"x-api-key": key})
    with urllib.request.urlopen(request) as response:
        return json.load(response)
