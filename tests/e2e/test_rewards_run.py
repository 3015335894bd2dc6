"""Rewards of every kind in a whole run: what blocks, what sees a group, what is started, and what fails."""

from __future__ import annotations

from typing import Any

PLUGIN = """
    from toolrl import Component, hookimpl

    @hookimpl
    def toolrl_rewards():
        for name in ("ranked", "blocking"):
            yield Component(name, f"toolrl_plugin_grades.rewards:{name}", summary="For a test.")
"""
REWARDS = """
    import threading
    from pathlib import Path

    from toolrl.types import Score

    class Ranked:
        '''The place in the group; the second of each group can't be scored.'''

        async def start(self):
            Path("log.txt").write_text("start ")

        async def stop(self):
            with Path("log.txt").open("a") as log:
                log.write("stop")

        def score_group(self, episodes):
            assert Path("log.txt").read_text() == "start "
            return [ValueError("odd") if it.index == 1 else Score(float(place)) for place, it in enumerate(episodes)]

    class Blocking:
        def score(self, episode):
            assert threading.current_thread() is not threading.main_thread()
            return Score(1.0, metrics={"correct": 1.0})

    def ranked(options, context):
        return Ranked()

    def blocking(options, context):
        return Blocking()
"""


def test_a_training_step(workplace: Any, plugin_site: Any, tmp_path: Any) -> None:
    plugin_site.add("grades", {"plugin": PLUGIN, "rewards": REWARDS})
    rewards = ["blocking", {"use": "ranked", "weight": 0.5}]
    changes = {
        "environments": {"default": {"rewards": rewards}},
        "rollout": {"max_error_rate": 0.3},
        "trainer": {"steps": 1},
        "run": {"name": "graded"},
        "data": {"eval": None},
        "evaluation": None,
    }
    done = workplace.toolrl("train", workplace.config(changes, name="graded"), "--json", site=plugin_site)
    assert done.returncode == 0, done.stderr
    folder = workplace.run("graded")
    episodes = [stored.episode for stored in folder.episodes()]
    assert len(episodes) == 16
    for episode in episodes:
        assert (episode.failure is not None) == (episode.index == 1)
        # The others keep their places in the group.
        assert episode.reward == (1.0 if episode.index == 1 else 1.0 + 0.5 * episode.index)
        assert episode.correct == 1.0
    (line,) = folder.metrics_lines("train")
    assert line.metrics["errors/rate"] == 0.25
    assert "odd" in next(episode.failure.message for episode in episodes if episode.failure)
    assert (workplace.folder / "log.txt").read_text() == "start stop"
