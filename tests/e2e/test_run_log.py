"""What a run leaves of its warnings: run.log, from the first record to the error that ended it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

REWARD = {
    "plugin": """
        from toolrl import Component, hookimpl

        @hookimpl
        def toolrl_rewards():
            yield Component("shaky", "toolrl_plugin_shaky.reward:Shaky", summary="Raises now and then.")
    """,
    "reward": """
        import os
        from toolrl.types import Score

        class Shaky:
            def __init__(self, options, context):
                self.count, self.every = 0, int(os.environ["SHAKY_EVERY"])

            async def score(self, episode):
                self.count += 1
                return Score(1 / (self.count % self.every))
    """,
}


def test_first_tracebacks_and_the_end_are_kept(workplace: Any, plugin_site: Any, scripted: Callable[..., None]) -> None:
    plugin_site.add("shaky", REWARD)
    scripted(workplace.folder, {"text": "4"})
    environments = {"default": {"rewards": ["shaky"]}}
    config = workplace.config({"environments": environments, "engine": "script", "run": {"name": "log"}}, name="log")
    words = ("rollout", config, "--tasks", "10", "--episodes", "2")
    done = workplace.toolrl(*words, site=plugin_site, env={"SHAKY_EVERY": "10"})
    assert done.returncode == 0, done.stderr
    folder = workplace.run("log-rollout")
    text = (folder.directory / "run.log").read_text(encoding="utf-8")
    first, *lines = [line for line in text.splitlines() if not line.startswith("  ")]
    assert "the run starts in process" in first
    (failed,) = [line for line in lines if " ERROR " in line]
    assert "reward (shaky): RewardError: reward 'shaky' raised ZeroDivisionError" in failed
    assert re.search(r"toolrl_plugin_shaky/reward\.py:11\)", failed)
    assert "\n  Traceback" in text
    assert lines[-1].endswith("the run finished")
    assert "reward.py:11" in done.stderr, "the terminal has it too"
    assert 'class="log"' in folder.report_path.read_text(encoding="utf-8")

    done = workplace.toolrl(*words, "--overwrite", site=plugin_site, env={"SHAKY_EVERY": "1"})
    assert done.returncode == 1
    text = (folder.directory / "run.log").read_text(encoding="utf-8")
    assert text.count("the run starts in process") == 1, "the older run's log went with it"
    assert "the run ended: RunStoppedError: 20 of 20 episodes failed" in text
    for said in (text.rpartition("RunStoppedError")[2], done.stderr):
        assert "reward.py:11" in said
