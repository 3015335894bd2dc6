"""Finding out what isolates here, and refusing where nothing does."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import toolrl
import toolrl_plugin_python
from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext
from toolrl_plugin_python import detection, paths
from toolrl_plugin_python.jail.settings import LANDLOCK, NAMESPACES, Settings
from toolrl_plugin_python.options import PythonOptions
from toolrl_plugin_python.tool import build_python

_USER = 23456
"""An ordinary user that owns nothing, and isn't the one that an unmapped user is shown as."""
_INSIDE_USER = 1000
OPEN = Settings(tuple(paths.system_libraries() + paths.interpreter_paths()), tuple(paths.search_path()))


def refuse(*modes: str) -> object:
    """A probe for which these ways don't work."""

    def look(way: Settings, module: str) -> tuple[list[str], bool]:
        if way.mode in modes:
            raise detection.UnfitError(f"{way.mode} is forbidden")
        return [], False

    return look


def test_the_strongest_that_works_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "look", refuse())
    settings, found = detection.detect("auto", OPEN)
    assert settings.mode == NAMESPACES
    assert "namespaces" in found
    monkeypatch.setattr(detection, "look", refuse(NAMESPACES))
    settings, found = detection.detect("auto", OPEN)
    assert settings.mode == LANDLOCK
    assert settings.own_user == (os.geteuid() == 0)
    assert "not used: namespaces: namespaces is forbidden" in found


def test_it_refuses_rather_than_run_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "look", refuse(NAMESPACES, LANDLOCK))
    with pytest.raises(ConfigError, match="namespaces: namespaces is forbidden") as caught:
        detection.detect("auto", OPEN)
    assert "landlock: landlock is forbidden" in str(caught.value)
    assert "isolation: none" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="can't be isolated"):
        asyncio.run(build_python(PythonOptions(), BuildContext(name="python")).start())


def test_none_has_to_be_written_and_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    toolset = build_python(PythonOptions(isolation="none", pool_size=0), BuildContext(name="python"))

    async def start_and_stop() -> None:
        await toolset.start()
        await toolset.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(start_and_stop())
    assert "all the rights of this process" in caplog.text


def test_a_probe_sees_every_hole() -> None:
    """Without walls all is found wrong but ptrace, which a system may forbid by itself."""
    wrong, _ = detection.look(OPEN, "colorsys")
    assert set(wrong) - {"ptrace is allowed"} == {
        "a file outside can be read",
        "a file outside can be written",
        "a file can be made outside",
        "a file outside can be changed",
        "a socket can be made",
        "a process outside can be signalled",
        "the environment of a process outside can be read",
        "more processes can be started than are allowed",
    }


def test_a_keeper_that_can_not_begin_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolrl_plugin_python.keeper_process._BEGIN", "raise SystemExit('broken on purpose')")
    with pytest.raises(ConfigError, match="it died: broken on purpose"):
        detection.detect("auto", OPEN)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
@pytest.mark.parametrize("way", ["namespaces", "landlock"])
def test_an_ordinary_user_is_isolated_as_well(way: str, tmp_path: Path) -> None:
    python = next((path for path in ("/usr/bin/python3", sys.executable) if _can_be_used(path)), None)
    if python is None:
        pytest.skip("no interpreter that another user may run, and that has what toolrl needs")
    script = (
        "import asyncio; from pathlib import Path; from toolrl_plugin_python.sandbox import *\n"
        "from toolrl_plugin_python import paths\n"
        f"s = Sandbox.detect({way!r}, readable=[Path(p) for p in paths.interpreter_paths()])\n"
        "argv = [paths.interpreter(), '-S', '-c', 'import os; print(os.getuid(), os.listdir())']\n"
        "print(asyncio.run(s.run(argv, limits=ProgramLimits())).stdout)"
    )
    done = _as_user(python, script)
    assert done.returncode == 0, done.stderr
    seen = _INSIDE_USER if way == "namespaces" else _USER
    assert done.stdout.strip() == repr(f"{seen} []\n".encode())


def _as_user(python: str, script: str, user: int = _USER) -> subprocess.CompletedProcess[str]:
    sources = [Path(module.__file__ or "").parents[1] for module in (toolrl, toolrl_plugin_python)]
    found = [str(path) for path in (*sources, *map(Path, sys.path)) if "-packages" in str(path) or path in sources]
    environment = {"PYTHONPATH": os.pathsep.join(found), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", python, "-c", script]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=120)


def _can_be_used(python: str) -> bool:
    try:
        return _as_user(python, "import toolrl.errors, toolrl_plugin_python.sandbox").returncode == 0
    except OSError:
        return False
