"""Runs whose episodes have several trajectories: a tool asks the model (a sub-agent that is trained, and a critic of it
that isn't), or the model sums up its history."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from safetensors.torch import load_file

PLUGIN = {
    "plugin": """
        import os
        import signal

        from toolrl import Component, hookimpl
        from toolrl.protocols import EpisodeContext
        from toolrl.tools import tool
        from toolrl.types import Message, Score

        @hookimpl
        def toolrl_tools():
            yield Component("helped", "toolrl_plugin_helped.plugin:build", summary="Asks the model.")

        @hookimpl
        def toolrl_rewards():
            yield Component("long", "toolrl_plugin_helped.plugin:Long", summary="More is more.")

        class Long:
            def __init__(self, options, context): ...

            async def score(self, episode):
                return Score(float(episode.sampled_tokens), per_role={"agent": 1.0})

        def build(options, context):
            @tool(name="calculator")
            async def calculator(expression: str, episode: EpisodeContext) -> str:
                \"\"\"Evaluates an expression.\"\"\"
                if episode.episode_id.startswith(os.environ.get("KILLED_AT", "nowhere")):
                    os.kill(os.getpid(), signal.SIGKILL)
                seen = [Message("user", f"What is {expression}?")]
                said = await episode.model.ask(seen, max_tokens=12)
                seen += [said.message, Message("user", "Are you sure?")]
                await episode.model.ask(seen, max_tokens=12)
                verdict = await episode.model.ask(seen[:1], role="critic", max_tokens=4)
                return str(len(verdict.content))

            return calculator
    """
}

ENVIRONMENT = {"tools": ["helped"], "rewards": ["long"], "max_turns": 2, "untrained_roles": ["critic"]}
SETTINGS: dict[str, Any] = {
    "model": {"path": "runs/warm"},
    "data": {"eval": None},
    "environments": {"default": ENVIRONMENT},
    "trainer": {"steps": 1, "save_every": 0, "updates_per_step": 2},
}


@pytest.fixture
def site(own_place: Any) -> Any:
    site = own_place.site("helped")
    site.add("helped", PLUGIN)
    return site


def test_a_tool_that_asks_the_model(own_place: Any, site: Any, read_report: Callable[[Any], dict[str, Any]]) -> None:
    run = own_place.train({**SETTINGS, "deterministic": True, "observers": ["report"]}, site=site)
    (line,) = run.metrics_lines("train")
    assert line.metrics["trajectories/mean"] > 1
    assert line.metrics["role/reward/agent"] == line.metrics["reward/mean"]
    assert "role/reward/critic" in line.metrics
    assert 0 < line.metrics["logprob_mismatch/max"] < 1e-4
    assert line.metrics["errors/rate"] == 0
    asked = [it.episode for it in run.episodes() if any(record.result.error is None for record in it.episode.calls)]
    assert asked
    for episode in asked:
        roles = [(it.role, it.trained) for it in episode.trajectories]
        assert roles[0] == ("agent", True)
        assert roles.count(("critic", False)) == len(episode.calls)
        assert [turn.index for turn in episode.turns] == list(range(len(episode.turns)))
    assert any(len(it.turns) == 2 for episode in asked for it in episode.trajectories[1:]), "a question was continued"
    shown = {len(episode["trajectories"]) for episode in read_report(run)["episodes"]}
    assert max(shown) >= 3


def test_each_compaction_is_one_more_trajectory(own_place: Any) -> None:
    summarise = {"use": "summarise", "options": {"at_tokens": 50, "max_tokens": 6, "prompt": "Sum up."}}
    changes = {**SETTINGS, "environments": {"default": {"history": [summarise]}}, "deterministic": True}
    run = own_place.train(changes)
    (line,) = run.metrics_lines("train")
    assert 0 < line.metrics["logprob_mismatch/max"] < 1e-4
    assert line.metrics["errors/rate"] == 0
    compacted = [it.episode for it in run.episodes() if it.episode.metrics.get("tool/summarise/rewrites")]
    assert compacted
    for episode in compacted:
        assert len(episode.trajectories) == episode.metrics["tool/summarise/rewrites"] + 1


def test_a_killed_run_goes_on_to_the_same_weights(own_place: Any, site: Any, here: Any) -> None:
    """Bit for bit, in each of its episodes and in the weights."""
    trainer = {**SETTINGS["trainer"], "steps": 3, "save_every": 1}
    config = own_place.config({**SETTINGS, "trainer": trainer, "deterministic": True})
    found = {}
    for name in ("whole", "killed"):
        arguments = ("train", config, "--set", f"run.name={name}")
        if name == "killed":
            done = own_place.toolrl(*arguments, site=site, env={"KILLED_AT": "train-2/"})
            assert done.returncode == -signal.SIGKILL
            arguments = (*arguments, "--resume")
        done = here(*arguments, site=site, place=own_place)
        assert done.returncode == 0, done.stderr
        run = own_place.run(name)
        episodes = {it.episode.id: it.episode.trajectories for it in run.episodes()}
        tokens = {key: [(it.role, it.ids, it.loss_mask, it.logprobs) for it in its] for key, its in episodes.items()}
        found[name] = tokens, load_file(run.checkpoints / "step-000003" / "model.safetensors")
    (tokens, weights), (again, others) = found.values()
    assert max(map(len, tokens.values())) > 1
    assert tokens == again
    assert all(value.equal(others[key]) for key, value in weights.items())


@pytest.mark.slow
def test_groups_of_several_trajectories_are_replayed(own_place: Any, site: Any, here: Any) -> None:
    """Also those that a checkpoint kept, by another policy than the one that sampled them."""
    changes = {
        **SETTINGS,
        "rollout": {"max_staleness": 3, "replay": 0.5, "concurrency": 16},
        "algorithm": {"group_size": 2, "preset": "grpo", "importance": {"level": "sequence"}},
        "trainer": {"steps": 2, "prompts_per_step": 2, "save_every": 1, "learning_rate": 1.0e-3},
    }
    config = own_place.config(changes)
    for more in ((), ("--resume", "--set", "trainer.steps=4")):
        done = here("train", config, *more, site=site, place=own_place)
        assert done.returncode == 0, done.stderr
    run = own_place.run("grpo")
    buffer = (run.checkpoints / "step-000004" / "trainer" / "buffer.jsonl").read_text()
    kept = [episode for line in buffer.splitlines() for episode in json.loads(line)["episodes"]]
    assert any(len(episode.get("trajectories", ())) > 1 for episode in kept)
    lines = [line.metrics for line in run.metrics_lines("train")]
    assert [metrics["groups/replayed"] for metrics in lines] == [0.0, 1.0, 1.0, 1.0]
    assert all(0 <= metrics["staleness/max"] <= 3 for metrics in lines)
    assert all(metrics["importance/mean"] > 0 for metrics in lines if "loss" in metrics)
