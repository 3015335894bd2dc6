"""A run whose episodes a Python harness plays: it calls the environment's tools, and asks a helper."""

from __future__ import annotations

from typing import Any

PLUGIN = {
    "plugin": """
        from toolrl import Component, hookimpl
        from toolrl.parsing.items import tool_messages
        from toolrl.protocols import Outcome
        from toolrl.types import Message, Score

        @hookimpl
        def toolrl_harnesses():
            yield Component("loop", "toolrl_plugin_loop.plugin:Loop", summary="A loop of its own.")

        class Loop:
            def __init__(self, options, context): ...

            async def play(self, task, model, episode):
                messages = [*task.messages]
                while (turn := await model.ask(messages, episode.tools.specs(), max_tokens=40)).items:
                    messages += [turn.message, *tool_messages(await episode.tools.answer(turn.items))]
                said = await model.ask([Message("user", turn.content)], role="critic", max_tokens=4)
                return Outcome(turn.content, Score(float(len(said.content)), per_role={"agent": 0.5}))
    """
}


def test_a_harness_plays_the_episodes_of_a_run(workplace: Any, own_place: Any) -> None:
    site = workplace.site("loop")
    site.add("loop", PLUGIN)
    environment = {"tools": ["calculator"], "harness": "loop", "max_turns": 3, "untrained_roles": ["critic"]}
    changes = {
        "model": {"path": "runs/warm"},
        "data": {"eval": None},
        "environments": {"default": environment},
        "trainer": {"steps": 2, "save_every": 0},
        "deterministic": True,
    }
    run = own_place.train(changes, site=site)
    for line in run.metrics_lines("train"):
        assert line.metrics["errors/rate"] == 0
        assert line.metrics["calls/mean"] > 0
        assert line.metrics["calls/success"] > 0
        assert 0 < line.metrics["logprob_mismatch/max"] < 1e-4
        assert line.metrics["model/forked"] == 0
        assert "reward/harness/mean" in line.metrics
    episodes = [it.episode for it in run.episodes()]
    assert episodes
    for episode in episodes:
        assert [it.role for it in episode.trajectories][:1] == ["agent"]
        assert len([it for it in episode.trajectories if it.role == "agent"]) == 1, "append-only is one trajectory"
        called = [turn for turn in episode.turns if turn.items]
        assert [len(turn.calls) for turn in called] == [len(turn.items) for turn in called]
        assert episode.stop_reason in ("no_call", "max_turns")
