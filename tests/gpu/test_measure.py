"""The calls of `measure.py` in their dry runs: each measures all that it names, also from a checkout alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
for name in ("transformers", "qwen", "calculator", "math"):
    pytest.importorskip(f"toolrl_plugin_{name}")
pytest.importorskip("peft")

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

from checkout import import_paths  # noqa: E402
from figures import EXPECTED  # noqa: E402


def measure(out: Path, *words: str, **environment: str) -> list[dict[str, Any]]:
    """The lines of figures.jsonl."""
    command = [sys.executable, str(FOLDER / "measure.py"), *words, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in (out / "figures.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("call", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_call_measures_all_that_it_names(call: int, tmp_path: Path) -> None:
    lines = measure(tmp_path, str(call), "--dry-run")
    found = {line["figure"]: line["value"] for line in lines if "figure" in line}
    assert not [line for line in lines if "missing" in line]
    assert found.keys() == EXPECTED[call].keys()
    for name, value in found.items():
        if "error of" in name:
            assert value < 1e-5, name
    assert found.get("sharded over whole: gradient norm", 1.0) == pytest.approx(1.0, rel=1e-4)
    assert found.get("differences of a killed and resumed run", 0) == 0


def test_what_no_longer_fits_is_left_out(tmp_path: Path) -> None:
    lines = measure(tmp_path, "3", "--minutes", "0.1")
    assert {line["missing"].partition(":")[0] for line in lines} == {"transfers", "updates"}


def test_a_checkout_is_enough(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "probe-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("of_a_wheel.py", "")
    places = [path for path in sys.path if "site-packages" in path]  # -S: what is installed in place isn't found there.
    paths = os.pathsep.join([*import_paths(tmp_path / "paths", tmp_path), *places])
    code = "import of_a_wheel, toolrl.cli.main as main; main.main(['list-plugins'])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for name in ("builtin", "torch", "qwen", "transformers"):
        assert name in done.stdout
