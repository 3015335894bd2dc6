"""Whatever a model writes, a built-in tool gets no path outside of what it may reach."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.errors import ToolError
from toolrl_plugin_qwen_agent.guards import guarded

_PARTS = st.lists(st.sampled_from(["..", ".", "", "a", "etc", "~", "file:", "passwd", "%2e%2e", "\\"]), max_size=8)
KEYS = st.one_of(st.text(max_size=30), _PARTS.map("/".join), _PARTS.map(lambda parts: "/" + "/".join(parts)))


def builtin(name: str, **fields: Any) -> Any:
    """An object of a class that looks like one of qwen_agent."""
    return type(name, (), {"__module__": f"qwen_agent.tools.{name.lower()}", **fields})()


@given(KEYS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_keys_of_the_storage(tmp_path: Path, key: str) -> None:
    root = tmp_path / "root"
    try:
        arguments = guarded(builtin("Storage", root=str(root)), {"operate": "get", "key": key}, (), urls=False)
    except ToolError:
        return
    read = arguments["key"].removeprefix("/")  # As the tool does.
    assert Path(os.path.realpath(os.path.join(root, read))).is_relative_to(os.path.realpath(root))  # noqa: PTH118


@given(KEYS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_paths_of_documents(tmp_path: Path, given_path: str) -> None:
    (tmp_path / "in" / "etc").mkdir(parents=True, exist_ok=True)
    for name in ("a", "passwd", "in/a", "in/etc/passwd"):
        (tmp_path / name).touch()
    tool = builtin("Retrieval")
    try:
        arguments = guarded(tool, {"files": [given_path]}, (tmp_path / "in",), urls=False)
    except ToolError:
        return
    (path,) = map(Path, arguments["files"])
    assert path.is_file()
    assert path == path.resolve()
    assert path.is_relative_to((tmp_path / "in").resolve())


@pytest.mark.parametrize("name", ["SimpleDocParser", "DocParser", "WebExtractor"])
def test_addresses(name: str) -> None:
    arguments = {"url": "https://example.com/x"}
    assert guarded(builtin(name), arguments, (), urls=True) == arguments
    if name == "WebExtractor":
        assert guarded(builtin(name), arguments, (), urls=False) == arguments
    else:
        with pytest.raises(ToolError, match="can't fetch"):
            guarded(builtin(name), arguments, (), urls=False)
    for wrong in ("/etc/passwd", "file:///etc/passwd", ["https://example.com"], None, 3):
        with pytest.raises(ToolError):
            guarded(builtin(name), {"url": wrong}, (), urls=True)


@pytest.mark.parametrize("wrong", ['["/etc/passwd"]', [None], [["x"]]])
def test_files_of_a_wrong_kind(wrong: Any) -> None:
    with pytest.raises(ToolError):
        guarded(builtin("Retrieval"), {"files": wrong}, (), urls=True)


def test_tools_of_ones_own_are_left_alone() -> None:
    class Storage:
        root = "/nowhere"

    arguments = {"key": "../x", "url": "/etc/passwd"}
    assert guarded(Storage(), arguments, (), urls=False) == arguments


def test_subclasses_are_guarded_too() -> None:
    base = type(builtin("SimpleDocParser"))
    with pytest.raises(ToolError):
        guarded(type("Mine", (base,), {})(), {"url": "/etc/passwd"}, (), urls=False)
