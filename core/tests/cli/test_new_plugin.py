"""`toolrl new-plugin`: what it writes installs, passes its own tests, and can be used, for every kind."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from toolrl.cli.main import main
from toolrl.cli.new_plugin import TEMPLATES, needed_folders

needs_hatchling = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None or importlib.util.find_spec("pip") is None,
    reason="hatchling and pip install the generated packages",
)
USABLE = [
    kind
    for kind, template in TEMPLATES.items()
    if not template.requires or importlib.util.find_spec(template.requires.replace("-", "_"))
]
"""Kinds whose components import what is installed here."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A plugin of each kind, written and installed: the folder of their sources, and an environment that has them."""
    sources = tmp_path_factory.mktemp("plugins")
    target = tmp_path_factory.mktemp("site")
    for kind in TEMPLATES:
        assert main(["new-plugin", f"demo-{kind}", "--kind", kind, "--dir", str(sources)]) == 0
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    folders = [str(folder) for folder in sorted(sources.iterdir())]
    done = subprocess.run([*command, "--target", str(target), *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))
    return sources, {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def run(environment: dict[str, str], *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], env=environment, cwd=cwd, capture_output=True, text=True)


@pytest.fixture(scope="module")
def outcomes(installed: tuple[Path, dict[str, str]]) -> dict[str, list[str]]:
    """Kind to the outcomes of its plugin's tests, all of them run in one go."""
    sources, environment = installed
    report = sources.parent / f"{sources.name}.xml"
    folders = [f"toolrl-plugin-demo-{kind}/tests" for kind in USABLE]
    # With an ini file here, test ids begin with the plugin's folder.
    (sources / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={report}"]
    done = run(environment, "-m", "pytest", *options, *folders, cwd=sources)
    found: dict[str, list[str]] = {kind: [] for kind in TEMPLATES}
    for case in ElementTree.parse(report).iter("testcase"):
        kind = case.get("classname", "").removeprefix("toolrl-plugin-demo-").partition(".")[0]
        trouble = [f"{case.get('name')}: {child.get('message')}" for child in case if child.tag != "properties"]
        found[kind].append("; ".join(trouble))
    assert any(found.values()), done.stdout
    return found


@needs_hatchling
@pytest.mark.parametrize("kind", USABLE)
def test_a_new_plugin_passes_its_tests(kind: str, outcomes: dict[str, list[str]]) -> None:
    """None fails, and none is skipped but for want of torch."""
    lacking = () if importlib.util.find_spec("torch") else ("a policy loss needs torch",)
    assert len(outcomes[kind]) >= 7
    assert [text for text in outcomes[kind] if text and not text.endswith(lacking or "\0")] == []


@needs_hatchling
def test_new_plugins_are_listed(installed: tuple[Path, dict[str, str]]) -> None:
    done = run(installed[1], "-m", "toolrl", "list-plugins", "--json")
    assert done.returncode == 0, done.stderr
    plugins = {plugin["name"]: plugin for plugin in json.loads(done.stdout)["plugins"]}
    for kind, about in TEMPLATES.items():
        plugin = plugins[f"demo-{kind}"]
        # Some packages need another of toolrl's, which core's tests may run without.
        needed = {"parser": "toolrl_common", "chat-format": "toolrl_plugin_chat"}.get(kind)
        met = needed is None or importlib.util.find_spec(needed) is not None
        assert plugin["status"] == ("ok" if met else "unmet"), plugin
        expected = "count" if kind == "command" else f"demo-{kind}"
        assert plugin["components"] == {about.kind.name: [expected]}


CONFIG = """
model: {path: ./model}
data: {train: {use: demo-dataset, options: {path: rows.tsv}}}
engine: demo-engine
environments:
  default:
    parser: {use: demo-parser, options: {tag: do}}
    chat_format: demo-chat-format
    harness: {use: demo-harness, options: {last_question: And}}
    tools: [{use: demo-tool, options: {max_length: 10}}, demo-environment]
    rewards: [{use: demo-reward, weight: 2.0}]
algorithm:
  advantage: {use: demo-advantage, options: {most: 3.0}}
  policy_loss: demo-policy-loss
observers: [demo-observer]
"""


@needs_hatchling
def test_a_config_uses_them_without_a_change_to_core(installed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    check = (
        "import sys; from toolrl.config.load import load_config; from toolrl.plugins.registry import load_registry; "
    )
    check += "load_config(sys.argv[1], [], registry=load_registry())"
    done = run(installed[1], "-c", check, str(config))
    assert done.returncode == 0, done.stderr
    config.write_text(CONFIG.replace("max_length: 10", "max_length: 0"), encoding="utf-8")
    done = run(installed[1], "-c", check, str(config))
    assert "environments.default.tools[0].options.max_length" in done.stderr


@needs_hatchling
def test_a_new_command_runs(installed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("1\n2\n3\n")
    done = run(installed[1], "-m", "toolrl", "demo-command", "count", "lines.txt", cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["3", "lines.txt"]), done.stderr
    done = run(installed[1], "-m", "toolrl", "demo-command", "count", "none.txt", cwd=tmp_path)
    assert done.returncode == 1
    assert "none.txt: can't be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_packages_of_the_clone_are_named_where_they_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugins" / "testing").mkdir(parents=True)
    (tmp_path / "plugins" / "chat").mkdir()
    monkeypatch.setattr("toolrl.plugins.discovery.installed_version", lambda name: None)
    monkeypatch.setattr("toolrl.plugins.discovery.source_folder", lambda name: str(tmp_path / "core"))
    folders = [str(tmp_path / "plugins" / name) for name in ("testing", "chat")]
    assert needed_folders("chat-format") == folders
    monkeypatch.setattr("toolrl.plugins.discovery.source_folder", lambda name: None)
    assert needed_folders("chat-format") == []
