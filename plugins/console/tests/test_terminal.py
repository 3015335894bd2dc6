"""What a user sees of a run on a terminal, in a log and in a notebook."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).parent / "support"
SCRIPT = SUPPORT / "played_run.py"
Terminal: Any = runpy.run_path(str(SUPPORT / "terminal.py"))["Terminal"]
COMMAND = [sys.executable, str(SCRIPT), "runs/demo"]
COLOR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7])(?:;\d+)*m")
MOVES = re.compile(r"\x1b\[[\d;?]*[^\dm;?]")
"""What a terminal is told besides colours."""


@pytest.mark.parametrize(("columns", "env"), [(100, {}), (40, {"NO_COLOR": "1"})])
def test_a_terminal_shows_the_present_phase_below_lines_that_stay(
    columns: int, env: Mapping[str, str], tmp_path: Path
) -> None:
    terminal = Terminal(COMMAND, tmp_path, columns, env)
    for shown in ("sampling, step 3: 1/4 episodes", "\nstep 2/4", "\nreward ▁█ 0.2", "a print of a tool"):
        terminal.wait_for(shown)
    (tmp_path / "go-on").touch()
    assert terminal.end() == 0
    lines = terminal.text.splitlines()
    for start in ("starting the engine", "eval  0/4", "train 1/4", "train 2/4", "train 3/4", "train 4/4", "eval  4/4"):
        assert [line.startswith(start) for line in lines].count(True) == 1, terminal.text
    assert [line for line in lines if "a warning of the run" in line]
    assert all("accuracy 0." in line for line in lines if line.startswith(("train", "eval  ")) and "/4" in line)
    # The view is gone, and one screen of results stands in its place.
    assert "episodes" not in terminal.text
    end = terminal.text[terminal.text.index("finished after") :]
    assert len(end.splitlines()) < 20
    error = r" ± 0\.020" if columns == 100 else ""
    assert re.search(rf"eval accuracy +0\.100{error} +0\.900{error}", end)
    for line in ("reward ▁▃▆█ 0.4", "run         runs/demo", "checkpoint  runs/demo/checkpoints/step-000004",
                 "next        toolrl eval runs/demo", "            toolrl export runs/demo FOLDER"):  # fmt: skip
        assert line in (end.splitlines() if columns == 100 else end.replace("\n", ""))
    assert bool(COLOR.search(terminal.raw)) == (not env)
    assert b"\x1b[?25l" not in terminal.raw, "a killed process would leave the terminal without a cursor"


@pytest.mark.parametrize("env", [{}, {"FORCE_COLOR": "1"}], ids=str)
def test_a_log_has_a_line_for_each_stage_and_nothing_that_moves(env: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "go-on").touch()
    done = subprocess.run(COMMAND, cwd=tmp_path, env={**_environment(), **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stdout
    assert not MOVES.search(done.stdout)
    assert ("\x1b" in done.stdout) == bool(env)
    if not env:
        stages = done.stdout[: done.stdout.index("finished after")].splitlines()
        shown = [re.match(r"[^\d:]+[\d/]*", line)[0].strip() for line in stages if "demo" not in line]
        assert shown == [
            "starting the engine and the tools",
            *("evaluating, step 0", "eval  0/4", "sampling, step 1", "updating, step 1", "train 1/4", "train 2/4"),
            *("a print of a tool", "train 3/4", "train 4/4", "evaluating, step 4", "eval  4/4"),
        ]


def test_a_notebook_keeps_one_output_up_to_date(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cell = f"""
        import asyncio, sys, threading
        from pathlib import Path
        sys.path.insert(0, {str(SUPPORT)!r})
        from played_run import ConsoleObserver, ConsoleOptions, play
        assert asyncio.get_running_loop()
        observer = ConsoleObserver(ConsoleOptions(sample_every=0))
        thread = threading.Thread(target=play, args=(Path("runs/demo"), observer))  # As toolrl.train runs it.
        thread.start()
        thread.join()
    """
    (tmp_path / "go-on").touch()
    cells = ["\n".join(map(str.strip, cell.splitlines())), f"!{sys.executable} {SCRIPT} runs/other"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (shown,) = (output for output in notebook.cells[0].outputs if output.output_type == "display_data")
    assert shown.data["text/plain"].startswith("finished after")
    here, as_command = (
        "".join(output.text for output in cell.outputs if output.output_type == "stream") for cell in notebook.cells
    )
    assert not re.search(r"[\r\x1b]", here)
    assert "train 4/4  accuracy 0.400" in here
    assert "next        toolrl eval runs/demo" in here
    assert "toolrl eval runs/other" in as_command
    assert not MOVES.search(as_command), "a notebook runs it on a pseudo-terminal"


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")}
