"""Folders for a while: those of processes that were killed go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolrl.loop.ranks import ONE
from toolrl_plugin_torch.policy import PolicyWeights
from toolrl_plugin_torch.weights import delete_abandoned, temporary_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from toolrl_plugin_torch.weights import temporary_folder
folder = temporary_folder("weights-3", Path(sys.argv[1]))
(Path(folder.name) / "model.safetensors").write_bytes(b"x" * 1000)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=120, check=False)
    assert done.returncode < 0
    assert len(list(tmp_path.glob("scratch-weights-3-*/model.safetensors"))) == 1
    (tmp_path / "checkpoints").mkdir()
    delete_abandoned(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    with temporary_folder("weights-0", tmp_path) as folder:
        assert Path(folder).parent == tmp_path
    assert not Path(folder).exists()


def test_half_of_a_model_is_never_given_out(tmp_path: Path) -> None:
    class Failing:
        full = True
        ranks = ONE

        def save_whole(self, folder: Path) -> None:
            (folder / "config.json").write_text("{}")
            if self.full:
                raise OSError(28, "No space left on device")
            (folder / "model.safetensors").write_bytes(b"x")

    policy: Any = Failing()
    weights = PolicyWeights(policy, 1, tmp_path)
    with pytest.raises(OSError, match="No space left"):
        weights.path()
    assert not list(tmp_path.iterdir())
    policy.full = False
    assert {path.name for path in weights.path().iterdir()} == {"config.json", "model.safetensors"}
    weights.close()
    assert not list(tmp_path.iterdir())
