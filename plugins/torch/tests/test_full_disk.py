"""A disk that is really full: what is said, and that the last good checkpoint stays.

A process of its own saves until nothing goes any more, on a file system of one MiB where the system lets a user mount
one, and under a limit on the size of files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="limits are Unix's")

SCRIPT = """
    import json, resource, sys
    from pathlib import Path

    import torch
    from safetensors.torch import save_file

    from toolrl.errors import CheckpointError
    from toolrl.loop.checkpoints import LoopState, latest_checkpoint, list_checkpoints, save_checkpoint, verify
    from toolrl_plugin_torch.checkpoints.trainer_state import write_state

    class Model(torch.nn.Linear):
        def save_pretrained(self, folder):
            save_file({"weight": self.weight.detach()}, folder / "model.safetensors")

    class Words:
        def save_pretrained(self, folder):
            (folder / "tokenizer.json").write_text("{}")

    directory, limit = Path(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    model = Model(100, 400, bias=False)  # 156 KiB, and twice of it in the optimizer's state

    def save(step):
        optimizer = {"average": torch.randn(2, 400, 100)}
        def write(folder):
            model.save_pretrained(folder)
            Words().save_pretrained(folder)
            write_state(folder, optimizer, {})

        size = lambda: optimizer["average"].nbytes + model.weight.nbytes
        save_checkpoint(directory, LoopState(step, step, step, "digest"), write, keep=9, size=size)

    save(1)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    error = None
    for step in range(2, 9):
        try:
            save(step)
        except CheckpointError as caught:
            error = caught
            break
    for path in list_checkpoints(directory):
        verify(path)
    print(json.dumps({
        "message": error.message if error else None,
        "where": error.where if error else None,
        "hint": error.hint if error else None,
        "names": sorted(path.name for path in directory.iterdir()),
        "latest": latest_checkpoint(directory).name,
    }))
"""


def run(folder: Path, limit: int, *wrapper: str) -> dict[str, str | list[str]]:
    script = folder / "fill.py"
    script.write_text(textwrap.dedent(SCRIPT))
    directory = folder / "checkpoints"
    directory.mkdir()
    command = [*wrapper, sys.executable, str(script), str(directory), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str | list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("limit", "why"), [(100_000, "File too large"), (200_000, "writ")], ids=["in the weights", "in the state"]
)
def test_a_file_that_can_not_be_written_whole(tmp_path: Path, limit: int, why: str) -> None:
    found = run(tmp_path, limit)
    assert "the checkpoint of step 2 can't be written" in found["message"]
    assert why in found["message"]
    assert found["where"] == str(tmp_path / "checkpoints")
    assert "It takes about 0.5 MiB" in found["hint"]
    assert found["names"] == ["step-000001"]
