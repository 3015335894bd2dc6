"""Which paths isolated code sees."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.errors import ConfigError
from toolrl_plugin_python import paths
from toolrl_plugin_python.jail import landlock

_NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders a, b and c in each other, three deep, with a file in each of the deepest."""
    top = tmp_path_factory.mktemp("tree").resolve()
    for names in itertools.product("abc", repeat=3):
        folder = top.joinpath(*names)
        folder.mkdir(parents=True)
        (folder / "file").touch()
    return top


@given(readable=st.lists(_NAMES, max_size=4), hidden=st.lists(_NAMES, max_size=4))
def test_rules_cover_what_is_readable_and_not_hidden(tree: Path, readable: list[str], hidden: list[str]) -> None:
    """By the nearest of the named paths above each file, as mounts have it; a path that is both is readable."""
    covers, _ = landlock.without([str(tree / name) for name in readable], [str(tree / name) for name in hidden])
    for file in tree.rglob("file"):
        named = [name for name in (*readable, *hidden) if file.is_relative_to(tree / name)]
        nearest = max(named, key=len, default=None)
        assert any(file.is_relative_to(cover) for cover in covers) == (nearest in readable)


def test_the_interpreter_and_its_library_are_there() -> None:
    found = [Path(path) for path in paths.interpreter_paths()]
    assert Path(paths.interpreter()) in found
    assert all(path.exists() for path in found)
    standard = Path(paths.search_path()[1])
    assert (standard / "json" / "__init__.py").is_file()
    assert any(standard.is_relative_to(path) for path in found)
    assert not any(path == Path(sys.base_prefix) for path in found)


def test_a_package_comes_with_what_it_requires() -> None:
    readable, folders = paths.package_paths(["jsonschema"])
    names = {Path(path).name for path in readable}
    assert {"jsonschema", "referencing"} <= names
    assert "pytest" not in names
    assert len(folders) == 1
    assert all(Path(path).exists() for path in readable)


@pytest.mark.parametrize("path", ["/", "/tmp", "/proc", "relative", "/no/such/path"])
def test_paths_that_can_not_be_shown(path: str) -> None:
    with pytest.raises(ConfigError, match="readable"):
        paths.check_readable([Path(path)])
