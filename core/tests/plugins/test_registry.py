"""The registry: names, clashes, and what it says of a name that there isn't."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from toolrl import Component, hookimpl
from toolrl.errors import AmbiguousComponentError, UnknownComponentError
from toolrl.plugins.info import PluginInfo
from toolrl.plugins.registry import Registry, first_party


def plugin_module(**components: list[str]) -> ModuleType:
    """A module that gives components of these names, by kind."""
    made = ModuleType("demo")
    for kind, names in components.items():

        def hook(names: list[str] = names) -> list[Component[Any]]:
            return [Component(name, "demo:thing") for name in names]

        setattr(made, f"toolrl_{kind}", hookimpl(lambda hook=hook: hook()))
    return made


@pytest.fixture
def registry() -> Registry:
    return Registry.from_modules(
        {
            "math": plugin_module(tools=["calculator", "integrate"], rewards=["exact"]),
            "other": plugin_module(tools=["calculator"]),
        }
    )


def test_short_and_full_names_find_a_component(registry: Registry) -> None:
    assert registry.get("tools", "integrate") == registry.get("tools", "math/integrate")
    assert registry.get("rewards", "exact").qualified == "math/exact"


def test_a_name_that_two_plugins_give_is_an_error_only_where_it_is_used(registry: Registry) -> None:
    assert registry.names("tools") == ["integrate", "math/calculator", "other/calculator"]
    assert registry.get("tools", "math/calculator").plugin.name == "math"
    assert registry.get("tools", "other/calculator").plugin.name == "other"
    with pytest.raises(AmbiguousComponentError) as caught:
        registry.get("tools", "calculator")
    assert "2 plugins give the tool 'calculator'" in caught.value.message
    assert caught.value.hint == "Write math/calculator or other/calculator."


def test_clashes_of_short_names_are_listed_with_the_way_out(registry: Registry) -> None:
    for plugin in registry.plugins:
        (line,) = registry.clashes(plugin)
        assert line == "2 plugins give the tool 'calculator': write math/calculator or other/calculator"


def test_a_fallback_gives_way_to_another_plugin() -> None:
    alone, beside = ModuleType("alone"), plugin_module(observers=["console"])
    vars(alone)["toolrl_observers"] = hookimpl(lambda: [Component("console", "demo:plain", fallback=True)])
    assert Registry.from_modules({"builtin": alone}).get("observers", "console").plugin.name == "builtin"
    both = Registry.from_modules({"builtin": alone, "rich": beside})
    assert both.names("observers") == ["console"]
    assert both.plugins[0].name == "builtin"
    assert both.of_plugin(both.plugins[0]) == {}
    assert both.clashes(both.plugins[1]) == []
    for name in ("console", "builtin/console", "rich/console"):
        assert both.get("observers", name).plugin.name == "rich"


def test_an_unknown_name_gets_the_nearest_one_and_what_there_is(registry: Registry) -> None:
    with pytest.raises(UnknownComponentError) as caught:
        registry.get("tools", "integrat")
    assert "there is no tool named 'integrat'; installed: integrate, math/calculator" in caught.value.message
    assert caught.value.hint == "Did you mean 'integrate'?"
    with pytest.raises(UnknownComponentError) as caught:
        registry.get("tools", "maths/integrate")
    assert caught.value.hint == "Did you mean 'math/integrate'?"
    with pytest.raises(UnknownComponentError) as caught:
        registry.get("engines", "nothing")
    assert "installed: none" in caught.value.message
    assert "toolrl list-plugins" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("kind", "name", "plugins"),
    [
        (kind, name, [it for it, others in first_party().items() if name in others.get(kind, ())])
        for components in first_party().values()
        for kind, names in components.items()
        if kind != "needs"
        for name in names
    ]
    + [
        ("parsers", "qwen", ["qwen"]),  # the plugin's name for one of its components
        ("parsers", "vllm/hermes", ["vllm"]),  # there with vLLM alone
        ("engines", "vlllm", ["vllm"]),
    ],
)
def test_a_component_that_is_not_installed_names_its_package(kind: str, name: str, plugins: list[str]) -> None:
    with pytest.raises(UnknownComponentError) as caught:
        Registry([]).get(kind, name)
    assert plugins
    for plugin in plugins:
        folders = " ".join(f"./plugins/{it}" for it in [*first_party()[plugin].get("needs", ()), plugin])
        assert f"`pip install {folders}`" in (caught.value.hint or "")


def test_a_plugin_that_is_installed_is_not_to_be_installed() -> None:
    installed = PluginInfo("qwen", status="broken", reason="ImportError: x", hint="pip install x")
    with pytest.raises(UnknownComponentError) as caught:
        Registry([installed]).get("parsers", "hermes")
    assert "toolrl list-plugins" in (caught.value.hint or "")


def test_an_unknown_name_tells_what_was_not_loaded() -> None:
    broken = PluginInfo(
        "search", "toolrl-plugin-search", "1.0", "broken", "ImportError: no faiss", "pip install faiss", "Traceback: x"
    )
    disabled = PluginInfo("web", status="disabled", reason="named in TOOLRL_DISABLE")
    registry = Registry([broken, disabled])
    with pytest.raises(UnknownComponentError) as caught:
        registry.get("tools", "retrieve")
    assert "not loaded: search (broken: ImportError: no faiss), web (disabled: named in TOOLRL_DISABLE)" in str(
        caught.value
    )


@pytest.mark.parametrize("name", ["search/retrieve", "search"])
def test_a_name_of_a_broken_plugin_brings_its_own_traceback(name: str) -> None:
    broken = PluginInfo("search", status="broken", reason="ImportError: no faiss", hint="pip install faiss",
                        traceback="Traceback:\n  line one")  # fmt: skip
    with pytest.raises(UnknownComponentError) as caught:
        Registry([broken]).get("tools", name)
    assert caught.value.message == (
        f"tool {name!r}: the plugin 'search' is broken: ImportError: no faiss\n    Traceback:\n      line one"
    )
    assert caught.value.hint == "pip install faiss"


def test_a_name_that_is_no_short_one_takes_nobodys() -> None:
    module = ModuleType("demo")
    given = [Component("calculator", "demo:thing", short=False), Component("integrate", "demo:thing", short=False)]
    module.toolrl_tools = hookimpl(lambda: given)
    registry = Registry.from_modules({"foreign": module, "math": plugin_module(tools=["calculator"])})
    assert registry.names("tools") == ["calculator", "foreign/calculator", "foreign/integrate"]
    assert registry.get("tools", "calculator").plugin.name == "math"
    assert registry.get("tools", "foreign/calculator").plugin.name == "foreign"
    with pytest.raises(UnknownComponentError) as caught:
        registry.get("tools", "integrate")
    assert caught.value.hint == "Did you mean 'foreign/integrate'?"
