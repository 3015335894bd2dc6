"""The escape battery, whole: every attack is real, and none succeeds under what isolates here by default."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BATTERY = str(ROOT / "tests" / "batteries" / "escape_battery.py")
SOME_USER = 23456
WAYS = {
    "landlock, container": ("landlock", "container", ["a user of its own"], ["namespaces", "control groups"]),
    "landlock, user": ("landlock", "user", ["a single process"], ["namespaces", "a user of its own"]),
    "landlock, root": ("landlock", "", ["a user of its own"], ["namespaces"]),
    "namespaces, container": ("namespaces", "container", ["namespaces"], ["control groups"]),
    "namespaces, user": ("namespaces", "user", ["namespaces"], ["a user of its own"]),
}
"""Isolation, `--as`, and what the description of the way has and hasn't."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the battery reports."""
    sandbox = pytest.importorskip("toolrl_plugin_python.sandbox")
    from toolrl.errors import ConfigError

    try:
        sandbox.Sandbox.detect()
    except ConfigError as error:
        pytest.skip(str(error))
    command = [sys.executable, BATTERY, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_every_attack_is_a_real_one_and_none_succeeds(found: dict[str, Any]) -> None:
    assert [it for it in found["results"] if it["succeeded"] or it["damage"] or not it["is_real"]] == []
    assert found["next_call_failed"] == []


def test_the_table_of_the_docs_lists_every_attack(found: dict[str, Any]) -> None:
    """There are enough of each class."""
    classes: dict[str, list[tuple[str, str]]] = {}
    for it in found["results"]:
        classes.setdefault(it["kind"], []).append((it["name"], it["stopped_by"]))
    assert len(classes) > 10
    assert min(map(len, classes.values())) >= 5
    page = (ROOT / "docs" / "explanation" / "isolation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    assert sorted(rows) == sorted(row for of_class in classes.values() for row in of_class)


@pytest.fixture(scope="module")
def public_python() -> tuple[str, dict[str, str]]:
    """An interpreter that other users can start, and the environment in which it finds what is installed here."""
    pytest.importorskip("toolrl_plugin_python.sandbox")
    if os.geteuid() != 0:
        pytest.skip("only root can become others")
    path = [folder for folder in sys.path if folder and not folder.startswith(sys.base_prefix)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    name = f"python3.{sys.version_info.minor}"
    for python in (str(Path(sys.executable).resolve()), f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        command = [python, "-c", "import toolrl_plugin_python.tool"]
        try:
            subprocess.run(
                command, env=environment, user=SOME_USER, group=SOME_USER, extra_groups=[], check=True, timeout=60
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python, environment
    pytest.skip("no interpreter that other users can read, or they can't read what is installed")


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_what_hides_is_found_in_every_way(
    name: str, public_python: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation, identity, has, has_not = WAYS[name]
    python, environment = public_python
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "batteries"))
    hiding = [it.name for it in importlib.import_module("escape_battery").ATTACKS if it.hides]
    command = [python, BATTERY, "--json", "--proven", f"--isolation={isolation}", *(f"--only={it}" for it in hiding)]
    command += ["--as", identity] if identity else []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        environment = {**environment, "TMPDIR": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
        assert done.stdout, done.stderr
        assert os.listdir(folder) == []  # noqa: PTH208 - what was hidden is removed as well
    report = json.loads(done.stdout)
    if "error" in report:
        pytest.skip(report["error"])
    assert all(it in report["way"] for it in has), report["way"]
    assert not any(it in report["way"] for it in has_not), report["way"]
    assert [it for it in report["results"] if it["succeeded"] or it["damage"]] == []
    assert report["next_call_failed"] == []
    assert report["attacks"] == len(hiding) > 10
