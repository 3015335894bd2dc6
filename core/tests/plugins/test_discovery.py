"""Discovery: what metadata says, what importing says, and that neither hurts another plugin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from toolrl.plugins.discovery import GROUP, examine, find_plugins
from toolrl.plugins.info import PluginInfo
from toolrl.plugins.registry import Registry, load_registry


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Registry]]:
    """Reads the registry anew, with a folder of distributions in front."""

    def loaded(site, disable: str = "") -> Registry:
        monkeypatch.setenv("TOOLRL_DISABLE", disable)
        monkeypatch.syspath_prepend(str(site.folder))
        return load_registry.__wrapped__()

    before = set(sys.modules)
    yield loaded
    for name in set(sys.modules) - before:
        if name.startswith("toolrl_plugin_"):
            del sys.modules[name]


def _plugin(registry: Registry, name: str) -> PluginInfo:
    plugin = registry.plugin(name)
    assert plugin is not None
    return plugin


def test_each_trouble_has_its_status_reason_and_next_command(troubled_site, load) -> None:
    registry = load(troubled_site)
    expected = {
        "missing_module": ("broken", "No module named 'no_such_module_xyz'", "pip install no_such_module_xyz"),
        "raising": ("broken", "RuntimeError: boom at import", "toolrl doctor raising"),
        "exiting": ("broken", "SystemExit: 3", "toolrl doctor exiting"),
        "bad_syntax": ("broken", "SyntaxError", "toolrl doctor bad_syntax"),
        "from_the_future": ("incompatible", "needs toolrl >=9", "toolrl"),
        "misspelled": ("broken", "no hook 'toolrl_tool'", "Did you mean 'toolrl_tools'?"),
        "unmarked": ("broken", "toolrl_tools lacks the mark @hookimpl", "Put @hookimpl above `def toolrl_tools`"),
        "asynchronous": ("broken", "toolrl_tools is `async def`", "Write `def toolrl_tools`"),
        "object_giver": ("broken", "gave dict", "Component("),
        "failing_hook": ("broken", "ValueError: boom in the hook", "toolrl doctor failing_hook"),
    }
    for name, (status, reason, hint) in expected.items():
        plugin = _plugin(registry, name)
        assert (plugin.status, plugin.components) == (status, {}), name
        assert reason in plugin.reason, name
        assert "\n" not in plugin.reason, name
        assert hint in plugin.hint, name
    assert _plugin(registry, "good").status == "ok"
    assert registry.get("tools", "demo_tool").plugin.name == "good"


def test_a_broken_plugin_keeps_its_own_traceback(troubled_site, load) -> None:
    registry = load(troubled_site)
    assert "raise RuntimeError('boom at import')" in _plugin(registry, "raising").traceback
    assert "raise ValueError('boom in the hook')" in _plugin(registry, "failing_hook").traceback


def test_two_plugins_of_one_name_are_both_reported_and_neither_wins(troubled_site, load) -> None:
    twins = [plugin for plugin in load(troubled_site).plugins if plugin.name == "twin"]
    assert [plugin.distribution for plugin in twins] == ["toolrl-plugin-twin-one", "toolrl-plugin-twin-two"]
    for plugin in twins:
        assert plugin.status == "broken"
        assert "toolrl-plugin-twin-one 1.0 and toolrl-plugin-twin-two 1.0" in plugin.reason
        assert f"pip uninstall {plugin.distribution}" in plugin.hint


def test_a_disabled_or_incompatible_plugin_is_never_imported(site, load) -> None:
    mark = site.folder / "imported"
    source = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
    site.add("blocked", source)
    site.add("future", source, requires=("toolrl>=9",))
    load(site, disable="blocked")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("requires", "running", "status", "hint"),
    [
        ("toolrl>=0.1,<0.2", "0.1.0", "ok", ""),
        ("toolrl[train]>=0.1,<0.2", "0.1.5", "ok", ""),
        ("toolrl (>=0.1)", "0.2.dev3", "ok", ""),
        ("toolrl>=0.2", "0.1.0", "incompatible", 'pip install -U "toolrl>=0.2"'),
        ("toolrl~=0.3.1", "0.1.0", "incompatible", 'pip install -U "toolrl~=0.3.1"'),
        ("toolrl<0.1", "0.1.0", "incompatible", "pip install -U toolrl-plugin-some"),
        ("ToolRL<0.1", "0.1.0", "incompatible", "pip install -U toolrl-plugin-some"),
        ("toolrl>=9; extra == 'new'", "0.1.0", "ok", ""),
        ("toolrl>=9; python_version < '3'", "0.1.0", "ok", ""),
        ("toolrl-plugin-math>=9", "0.1.0", "unmet", 'pip install "toolrl-plugin-math>=9"'),
        ("toolrl>=>1", "0.1.0", "broken", "pip install --force-reinstall toolrl-plugin-some"),
    ],
)
def test_the_requirement_on_core_is_checked_against_the_running_version(
    site, monkeypatch: pytest.MonkeyPatch, requires: str, running: str, status: str, hint: str
) -> None:
    monkeypatch.setattr("toolrl.plugins.discovery.source_folder", lambda _: None)
    site.add("some", "", requires=("packaging>=1", requires))
    monkeypatch.syspath_prepend(str(site.folder))
    (info,) = examine([plugin for plugin in find_plugins() if plugin.name == "some"], running=running)
    assert (info.status, info.hint) == (status, hint)


def test_core_registers_its_own_components_by_the_same_group(load, site) -> None:
    assert any(plugin.name == "builtin" for plugin in find_plugins()), f"core has no entry point in {GROUP}"
    registry = load(site)
    assert {"jsonl", "parquet"} <= set(registry.names("datasets"))
    assert {"console", "jsonl"} <= set(registry.names("observers"))


def test_every_target_of_core_can_be_imported() -> None:
    builtin = load_registry().plugin("builtin")
    assert builtin is not None
    for components in builtin.components.values():
        for component in components:
            assert callable(component.load())
            assert component.load_options() is not None
            component.load_check()


def test_what_a_plugin_raises_that_is_no_exception_breaks_it_alone(site, load) -> None:
    """`pytest.importorskip` at a module's top, or a panic of a Rust extension, is a BaseException."""
    site.add("skipping", "class Skipped(BaseException): ...\nraise Skipped('not here')\n")
    site.add("exiting", HOOK.format("raise SystemExit(3)"))
    site.add("panicking", HOOK.format("raise type('Panic', (BaseException,), {})('out of bounds')"))
    registry = load(site)
    assert _plugin(registry, "skipping").reason == "Skipped: not here"
    assert _plugin(registry, "exiting").reason == "SystemExit: 3"
    assert _plugin(registry, "panicking").reason == "Panic: out of bounds"


HOOK = """
from toolrl import Component, hookimpl

@hookimpl
def toolrl_tools():
    {}
    yield Component("thing", "toolrl_plugin_thing:Thing")
"""


def test_a_disabled_name_that_nothing_has_is_told(caplog: pytest.LogCaptureFixture) -> None:
    plugins = [PluginInfo("web", "toolrl-plugin-web", "1")]
    found = examine(plugins, running="1.0", disabled={"toolrl-plugin-web", "wbe"})
    assert [plugin.status for plugin in found] == ["disabled"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "TOOLRL_DISABLE" in line
    assert "'wbe'" in line


@pytest.mark.parametrize(
    ("line", "status", "hint"),
    [
        ("pytest>=1", "ok", ""),
        ("PyTest", "ok", ""),
        ("pytest<1,>=0.5", "unmet", 'pip install "pytest<1,>=0.5"'),
        ("no-such-package-xyz>=2", "unmet", 'pip install "no-such-package-xyz>=2"'),
        ("no-such-package-xyz; extra == 'more'", "ok", ""),
        ("no-such-package-xyz; python_version < '3'", "ok", ""),
        ("no such requirement", "broken", "pip install --force-reinstall some"),
    ],
)
def test_a_requirement_is_compared_with_what_is_installed(line: str, status: str, hint: str) -> None:
    (plugin,) = examine([PluginInfo("some", "some", "1", requires=[line])], running="0.1.0")
    assert (plugin.status, plugin.hint) == (status, hint)
    assert plugin.usable == (status in ("ok", "unmet"))  # Its components stay visible.


def test_requirements_of_core_are_compared_too() -> None:
    (plugin,) = examine([PluginInfo("builtin", "toolrl", "0.1.0", requires=["pluggy>=99"])], running="0.1.0")
    assert (plugin.status, plugin.hint) == ("unmet", 'pip install "pluggy>=99"')


def test_a_toolrl_from_a_folder_is_updated_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index may have the version that a plugin asks for."""
    monkeypatch.setattr("toolrl.plugins.discovery.source_folder", lambda _: "/clone/core")
    (plugin,) = examine([PluginInfo("some", "some", "1", requires=["toolrl>=9"])], running="0.1.0")
    assert "git -C /clone/core pull" in plugin.hint
