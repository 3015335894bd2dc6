"""The script for a machine with a GPU, in its dry run: parts run, are kept, and fail one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
for name in ("transformers", "qwen", "calculator", "math"):
    pytest.importorskip(f"toolrl_plugin_{name}")

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parent


def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "measure.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the parts that take seconds."""
    folder = tmp_path_factory.mktemp("measured")
    done = measure("decode", "update", "exact", "--dry-run", "--out", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_what_is_measured_is_there(quick: Path) -> None:
    found = results(quick)
    assert list(found) == ["card", "decode:tiny", "update:tiny", "exact:tiny"]
    assert {result["status"] for result in found.values()} == {"ok"}
    card, decode, update, exact = (result["figures"] for result in found.values())
    assert card["bandwidth"] > 1e8
    assert card["matmul"]["float32"] > 1e8
    for row in decode["rows"]:
        assert row["whole_tokens_per_second"] > 0
        assert row["limit_seconds"] == pytest.approx(row["bytes_read"] / card["bandwidth"])
    whole, shared = update["rows"]
    assert shared["operations"] < whole["operations"]
    for row in update["rows"]:
        assert row["of_measured_peak"] == pytest.approx(row["operations"] / row["seconds"] / card["matmul"]["float32"])
    assert exact["mismatch"]["float32"]["shared"]["max"] < 1e-4
    assert exact["gradients"]["float64"]["shared"]["max"] < 1e-6
    assert exact["gradients"]["bfloat16"]["shared"]["norm"] < 0.1


def test_a_part_that_is_done_is_not_done_again(quick: Path) -> None:
    before = results(quick)
    done = measure("exact", "--dry-run", "--out", str(quick))
    assert done.returncode == 0
    assert "[exact:tiny] done earlier" in done.stdout
    assert results(quick) == before


def test_a_part_that_fails_says_why_and_stops_no_other(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    done = measure("decode", "learn", "--device", "cpu", "--model", str(broken), "--out", str(tmp_path))
    assert done.returncode == 1
    assert "[decode:broken] failed" in done.stdout
    assert "it has no config.json" in done.stdout
    found = results(tmp_path)
    assert found["learn:broken"]["status"] == "skipped"
    assert "--data" in found["learn:broken"]["reason"]


def test_a_dry_run_counts_for_nothing_but_dry_runs(quick: Path) -> None:
    before = results(quick)
    done = measure("card", "--device", "cpu", "--out", str(quick))
    assert done.returncode == 2
    assert "are of: dry run; name another --out" in done.stderr
    assert results(quick) == before


def test_models_that_cant_be_told_apart_and_folders_that_arent_there_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "model").mkdir(parents=True)
    two = [part for name in ("a", "b") for part in ("--model", str(tmp_path / name / "model"))]
    done = measure("card", *two, "--out", str(tmp_path))
    assert done.returncode == 2
    assert "two models are called model" in done.stderr
    done = measure("card", "--model", str(tmp_path / "nowhere"), "--out", str(tmp_path))
    assert done.returncode == 2
    assert f"there is no folder {tmp_path / 'nowhere'}" in done.stderr


def test_a_stage_that_had_to_be_killed_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import learn
    from settings import NotYetError, Settings

    stubborn = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    stage = learn.Stage("tools", "train", "grpo.yaml", {})
    monkeypatch.setattr(learn, "MARGIN", 1.0)
    learning = learn.Learning(Settings("cpu", True, str(tmp_path), model="m", data=".", seconds_left=2.5))
    started = []

    def start(stage: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", stubborn]))
        return started[-1]

    monkeypatch.setattr(learning, "_start", start)
    with pytest.raises(NotYetError, match="stopped in tools"):
        learning.do(stage)
    assert started[0].returncode is not None
    assert started[0].returncode < 0
    assert not (learning.folder / "tools.done").exists()


def test_again_begins_learning_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import learn
    from settings import Settings

    settings = Settings("cpu", True, str(tmp_path), model="m", data=".")
    done = learn.Learning(settings).folder / "tools.done"
    done.touch()
    learn.Learning(settings)
    assert done.exists()
    learn.Learning(replace(settings, again=True))
    assert not done.exists()
