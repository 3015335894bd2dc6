"""The folder of a model's config: the same path for the same content, the user's own, and whole for every reader."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from toolrl_plugin_vllm.config_folder import config_folder

BIG = "x" * (1 << 20)


def saving(**files: str) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        for name, text in files.items():
            place = folder / name.replace("__", "/")
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)

    return save


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "toolrl"


def content(folder: Path) -> dict[str, str]:
    return {str(it.relative_to(folder)): it.read_text() for it in folder.rglob("*") if it.is_file()}


def test_the_same_content_has_the_same_path_at_each_start_and_other_content_another(cache: Path) -> None:
    found = []
    for files in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "12", "b": ""}, {"a": "1", "sub__b": "2"}):
        with config_folder(saving(**files)) as folder:
            assert content(folder) == {name.replace("__", "/"): text for name, text in files.items()}
            found.append(folder)
    assert found[0] == found[1]
    assert len(set(found)) == 3
    assert sorted(cache.iterdir()) == sorted(set(found)), "nothing else is left behind"
    assert all(it.stat().st_mode & 0o077 == 0 for it in [cache, *cache.iterdir()])


@pytest.mark.parametrize("damage", ["", "other"])
def test_a_file_that_was_damaged_is_mended(damage: str) -> None:
    with config_folder(saving(config="{}")) as folder:
        (folder / "config").write_text(damage)
    with config_folder(saving(config="{}")) as again:
        assert (again, content(again)) == (folder, {"config": "{}"})


def _read_often(number: int) -> set[int]:
    found = set()
    for _ in range(30):
        with config_folder(saving(a=BIG, b=BIG)) as folder:
            if number == 0:
                (folder / "a").unlink(missing_ok=True)
                continue
            found.add(len((folder / "b").read_bytes()))
    return found


def test_runs_that_start_at_the_same_moment_read_whole_files() -> None:
    with ThreadPoolExecutor(3) as pool:
        assert set().union(*pool.map(_read_often, range(3))) == {len(BIG)}


@pytest.mark.parametrize("kind", ["open to others", "a file", "no home"])
def test_without_a_folder_of_the_users_own_a_warning_says_so_and_a_temporary_one_is_read(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    if kind == "open to others":
        cache.mkdir(parents=True)
        cache.chmod(0o777)
    elif kind == "a file":
        cache.parent.write_text("")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: Path("/proc/none"))
    with caplog.at_level(logging.WARNING), config_folder(saving(config="{}")) as folder:
        assert content(folder) == {"config": "{}"}
        assert cache not in folder.parents
    assert not folder.exists()
    assert "compiles the model anew at each start" in caplog.text


def test_what_saving_raises_is_raised() -> None:
    def save(folder: Path) -> None:
        raise ValueError("no config")

    with pytest.raises(ValueError, match="no config"), config_folder(save):
        pass
