"""Every Python block compiles, and the plugins that pages show can be installed, listed and used."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import Block, ShownPlugin, blocks, shown_plugins


@pytest.mark.parametrize("block", blocks("python", "py"), ids=str)
def test_python_blocks_compile(block: Block) -> None:
    compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def toolrl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a folder of plugins on the path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "toolrl", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("plugin", shown_plugins(), ids=str)
def test_plugins_that_are_shown_work(plugin: ShownPlugin, tmp_path: Path) -> None:
    plugin.install(tmp_path)
    listed = {it["name"]: it for it in json.loads(toolrl(tmp_path, "list-plugins", "--json").stdout)["plugins"]}
    for name in plugin.entry_points:
        assert listed[name]["status"] == "ok", listed[name]["reason"]
        assert listed[name]["components"]
        checked = toolrl(tmp_path, "doctor", name)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("plugin", "block"),
    [
        (plugin, block)
        for plugin in shown_plugins()
        for block in plugin.page.blocks
        if block.language == "python" and "asyncio.run(" in block.text
    ],
    ids=str,
)
def test_scripts_beside_a_plugin_run(plugin: ShownPlugin, block: Block, tmp_path: Path) -> None:
    plugin.install(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", block.text], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
