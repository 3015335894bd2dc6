"""`toolrl train` on a terminal, as a user sees it: from the first second to Ctrl-C, and on from there."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parents[2] / "plugins" / "console" / "tests" / "support"


def test_ctrl_c_shows_what_was_saved_and_a_command_that_continues(
    own_place: Any, here: Any, process_environment: Any
) -> None:
    settings = {
        "model": {"path": "runs/warm"},
        "algorithm": {"preset": "grpo"},
        "trainer": {"steps": 500, "save_every": 0},
        "observers": [{"use": "console", "options": {"sample_every": 0}}],
        "run": {"name": "shown"},
    }
    command = [sys.executable, "-m", "toolrl", "train", own_place.config(settings)]
    terminal = runpy.run_path(str(SUPPORT / "terminal.py"))["Terminal"](
        command, own_place.folder, 60, process_environment()
    )
    assert terminal.wait_for("loading the model runs/warm").startswith("loading")
    terminal.wait_for("starting the engine and the tools")
    terminal.wait_for("train   2/500")
    terminal.type("\x03")
    assert terminal.end() == 130
    end = terminal.text.partition("SIGINT: saving what is done")[2]
    step = re.search(r"interrupted after .* at step (\d+)/500", end)[1]
    assert f"checkpoint  runs/shown/checkpoints/step-{int(step):06d}" in end
    assert "report      runs/shown/report.html" in end
    words = shlex.split(re.search(r"next +toolrl (.*)", end)[1])
    assert words == ["train", "runs/shown", "--resume"]
    done = here(*words, "--set", f"trainer.steps={int(step) + 1}", place=own_place)
    assert done.returncode == 0, done.stderr
    assert f"resumes at step {step}" in done.stdout
    assert f"at step {int(step) + 1}/{int(step) + 1}" in done.stdout
