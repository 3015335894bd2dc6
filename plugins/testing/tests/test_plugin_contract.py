"""`PluginContract` as a plugin's author meets it: in a pytest of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from toolrl import Component, hookimpl

@hookimpl
def toolrl_tools():
    yield Component("tally", "toolrl_plugin_tally.tool:Tally", summary="Counts calls.")

@hookimpl
def toolrl_rewards():
    yield Component("lucky", "toolrl_plugin_tally.tool:Lucky", summary="Not a number.")
"""

TOOL = """
from toolrl.tools import Tool
from toolrl.types import Score, ToolSpec

class Tally(Tool):
    spec = ToolSpec("tally", "Counts calls.", {"type": "object", "properties": {}})
    count = 0

    async def execute(self, instance_id, parameters):
        self.count += 1  # Of all episodes together: the mistake that the contract finds.
        return self.count

class Lucky:
    def __init__(self, options, context): ...

    async def score(self, episode):
        return Score(float("nan"))
"""

CONTRACT = """
from toolrl_testing import PluginContract

class TestContract(PluginContract):
    plugin = "tally"
    tool_calls = {"tally": {}}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder in which a plugin with two mistakes is installed."""
    package = tmp_path / "site" / "toolrl_plugin_tally"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(PLUGIN)
    (package / "tool.py").write_text(TOOL)
    info = tmp_path / "site" / "toolrl_plugin_tally-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: toolrl-plugin-tally\nVersion: 0.1.0\nRequires-Dist: toolrl>=0.1,<0.2\n\n"
        "pip install toolrl-plugin-tally\n"
    )
    (info / "entry_points.txt").write_text("[toolrl.plugins]\ntally = toolrl_plugin_tally.plugin\n")
    return tmp_path / "site"


def run_pytest(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "--rootdir", str(folder)]
    return subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True).stdout


def test_exactly_the_broken_contracts_fail(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    tests = site.parent / "tests"
    tests.mkdir()
    (tests / "test_contract.py").write_text(CONTRACT)
    output = run_pytest(tests, "-v")
    failed = {line.split("::")[-1].split()[0] for line in output.splitlines() if " FAILED" in line}
    passed = {line.split("::")[-1].split()[0] for line in output.splitlines() if " PASSED" in line}
    assert failed == {"test_tool_keeps_episodes_apart[tally]", "test_reward_scores[lucky]"}, output
    assert "state is shared between episodes" in output
    assert passed == {
        "test_it_is_installed_and_usable",
        "test_discovery_imports_nothing_heavy",
        "test_descriptors",
        "test_component_resolves[tools-tally]",
        "test_component_resolves[rewards-lucky]",
        "test_component_options[tools-tally]",
        "test_component_options[rewards-lucky]",
        "test_tool_specs[tally]",
        "test_tool_calls[tally]",
        "test_tool_answers_odd_arguments[tally]",
        "test_tool_leaves_nothing_behind[tally]",
    }
    # Kinds that the plugin doesn't have leave no trace, not even a skipped test.
    assert "SKIPPED" not in output


def test_a_plugin_that_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "test_contract.py").write_text(CONTRACT)
    output = run_pytest(tmp_path)
    assert "0 entry points 'toolrl.plugins' are called 'tally'" in output
    assert "pip install -e ." in output


FIXTURES = """
import sys

def test_the_fixtures(build_context, finished_episode, tmp_path):
    assert not {"torch", "transformers", "ray"} & set(sys.modules)
    assert build_context.run_dir == tmp_path
    assert finished_episode("a", "b").final_text == "b"
"""


def test_fixtures_are_there_and_import_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_it.py").write_text(FIXTURES)
    # Other plugins of the environment may import what they like; only toolrl's is asked for.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    assert "1 passed" in run_pytest(tmp_path, "-p", "toolrl_testing.pytest_plugin")
