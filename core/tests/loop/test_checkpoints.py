"""Checkpoints: what is written comes back bit for bit, what is torn is named, what is old goes, what is good stays."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import CheckpointError
from toolrl.loop import checkpoints as module
from toolrl.loop.checkpoints import (
    LoopState,
    latest_checkpoint,
    list_checkpoints,
    load_state,
    save_checkpoint,
    verify,
)


@pytest.fixture
def save(trainer: Any, tmp_path: Path) -> Any:
    """Saves a step; `save.directory` is where."""

    def save(step: int, keep: int = 2) -> Path:
        state = LoopState(step, step, 8 * step, "digest")
        return save_checkpoint(save.directory, state, lambda folder: trainer.save(folder, None), keep=keep)

    save.directory = tmp_path / "checkpoints"  # type: ignore[attr-defined]
    return save


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_how_far_the_run_was_comes_back(trainer: Any, tmp_path: Path) -> None:
    buffer = ({"row": 3, "episodes": []}, {"row": 4, "episodes": [{"id": "x"}]})
    state = LoopState(3, 4, 24, "abc", pending=(22, 23), buffer=buffer, rows=100, data={"data.train": "d"})
    assert load_state(save_checkpoint(tmp_path, state, lambda folder: trainer.save(folder, None))) == state


def test_the_manifest_lists_every_other_file(save: Any) -> None:
    path = save(1)
    manifest = json.loads((path / "manifest.json").read_text())
    files = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert files == {*manifest["files"], "manifest.json"}
    assert {"config.json", "model.safetensors", "tokenizer.json", "trainer/state.pt"} <= files


def test_the_last_ones_are_kept(save: Any) -> None:
    for step in (1, 2, 3):
        save(step)
    assert _names(save.directory) == ["step-000002", "step-000003"]
    save(10, keep=1)
    assert _names(save.directory) == ["step-000010"]
    assert latest_checkpoint(save.directory) == save.directory / "step-000010"


def _cut(path: Path) -> str:
    file = path / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(size - 100)
    return f"model.safetensors has {size - 100} bytes, {size} were written"


def _flip(path: Path) -> str:
    file = path / "trainer" / "state.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return "trainer/state.pt was changed"


def _lose(path: Path) -> str:
    (path / "tokenizer.json").unlink()
    return "tokenizer.json is missing"


def _lose_manifest(path: Path) -> str:
    (path / "manifest.json").unlink()
    return "manifest.json is missing"


def _cut_manifest(path: Path) -> str:
    file = path / "manifest.json"
    file.write_text(file.read_text()[:50])
    return "manifest.json can't be read"


@pytest.mark.parametrize("tear", [_cut, _flip, _lose, _lose_manifest, _cut_manifest])
def test_a_torn_checkpoint_is_named_and_passed_over(save: Any, tear: Any, capsys: pytest.CaptureFixture[str]) -> None:
    good, torn = save(1), save(2)
    problem = tear(torn)
    with pytest.raises(CheckpointError) as caught:
        verify(torn)
    assert problem in str(caught.value)
    assert str(torn) in str(caught.value)
    assert latest_checkpoint(save.directory) == good
    printed = capsys.readouterr().err
    assert problem in printed
    assert "going back to step-000001" in printed


def test_only_torn_ones_are_an_error(save: Any) -> None:
    problems = [_cut(save(1)), _lose(save(2))]
    with pytest.raises(CheckpointError) as caught:
        latest_checkpoint(save.directory)
    assert all(problem in str(caught.value) for problem in problems)


def test_a_torn_one_does_not_count_as_kept(save: Any) -> None:
    good, torn = save(1), save(2)
    _cut(torn)
    save(3)
    assert good.exists()
    save(4)
    assert _names(save.directory) == ["step-000003", "step-000004"]


def test_a_step_can_be_written_again(save: Any) -> None:
    torn = save(1)
    _cut(torn)
    assert save(1) == torn
    verify(torn)
    assert _names(save.directory) == ["step-000001"]


def test_what_a_killed_process_left_is_cleaned_up_and_never_loaded(save: Any) -> None:
    good = save(1)
    shutil.copytree(good, save.directory / ".writing-step-000002")
    assert latest_checkpoint(save.directory) == good
    save(3)
    assert _names(save.directory) == ["step-000001", "step-000003"]


@pytest.mark.parametrize("where", ["trainer", "state", "manifest", "rename"])
def test_a_full_disk_leaves_the_old_ones_as_they_were(
    save: Any, trainer: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(1)
    before = {path: path.read_bytes() for path in save.directory.rglob("*") if path.is_file()}

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target: tuple[Any, str] = {
        "trainer": (trainer, "save"),
        "state": (module, "_write_state"),
        "manifest": (module, "_write_manifest"),
        "rename": (Path, "rename"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(*target, full)
        with pytest.raises(CheckpointError) as caught:
            save(2, keep=1)
    assert "No space left on device" in str(caught.value)
    assert "step-000001" in str(caught.value)
    assert {path: path.read_bytes() for path in save.directory.rglob("*") if path.is_file()} == before
    save(2, keep=1)
    assert _names(save.directory) == ["step-000002"]


def test_a_newer_format_is_refused(save: Any) -> None:
    path = save(1)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        verify(path)


def test_state_that_is_no_state_is_refused(save: Any) -> None:
    path = save(1)
    (path / "trainer" / "state.json").write_bytes(b"not a state")
    with pytest.raises(CheckpointError, match="can't be read"):
        load_state(path)


def test_a_kill_while_an_old_one_is_deleted_leaves_no_half_under_its_name(
    save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    delete = shutil.rmtree

    def killed(path: Path, **options: Any) -> None:
        if "step-000001" not in path.name:
            return delete(path, **options)
        (path / "manifest.json").unlink()
        raise Killed

    save(1)
    save(2)
    monkeypatch.setattr(module.shutil, "rmtree", killed)
    with pytest.raises(Killed):
        save(3, keep=2)
    monkeypatch.undo()
    for path in list_checkpoints(save.directory):
        verify(path)
    save(4)
    assert _names(save.directory) == ["step-000003", "step-000004"]
