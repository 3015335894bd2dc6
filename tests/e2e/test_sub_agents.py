"""A run whose tool asks the model: a sub-agent that is trained, and a critic of it that isn't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PLUGIN = {
    "plugin": """
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
                seen = [Message("user", f"What is {expression}?")]
                said = await episode.model.ask(seen, max_tokens=12)
                seen += [said.message, Message("user", "Are you sure?")]
                await episode.model.ask(seen, max_tokens=12)
                verdict = await episode.model.ask(seen[:1], role="critic", max_tokens=4)
                return str(len(verdict.content))

            return calculator
    """
}


def test_a_tool_that_asks_the_model(
    workplace: Any, own_place: Any, read_report: Callable[[Any], dict[str, Any]]
) -> None:
    site = workplace.site("helped")
    site.add("helped", PLUGIN)
    environment = {"tools": ["helped"], "rewards": ["long"], "max_turns": 2}
    environment |= {"untrained_roles": ["critic"]}
    changes = {
        "model": {"path": "runs/warm"},
        "data": {"eval": None},
        "environments": {"default": environment},
        "trainer": {"steps": 1, "save_every": 0, "updates_per_step": 2},
        "deterministic": True,
        "observers": ["report"],
    }
    done = own_place.toolrl("train", own_place.config(changes), "--json", site=site)
    assert done.returncode == 0, done.stderr
    run = own_place.run("grpo")
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
