"""What pluggy lets through: every way in which a hook would silently never be called."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from toolrl import Component, hookimpl, hookspecs
from toolrl.errors import PluginError
from toolrl.plugins.checks import EVENTS, REGISTRATION, check_components, check_plugin_module


def module(**names: Any) -> ModuleType:
    made = ModuleType("demo")
    vars(made).update(names)
    return made


def function(name: str, *, mark: Any = hookimpl) -> Any:
    def plain() -> list[Component]:
        return []

    plain.__name__ = name
    return mark(plain) if mark else plain


def test_every_kind_has_its_hook() -> None:
    assert set(REGISTRATION) <= set(vars(hookspecs))
    assert len(EVENTS) == 6


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        ({"toolrl_parser": function("toolrl_parser")}, "no hook 'toolrl_parser'", "'toolrl_parsers'"),
        ({"tools": function("tools")}, "no hook 'tools'", "The hooks are"),
        ({"toolrl_tools": function("toolrl_tools", mark=None)}, "lacks the mark @hookimpl", "Put @hookimpl above"),
        ({"toolrl_step_end": function("toolrl_step_end")}, "is an event", "`toolrl_observers`"),
        ({}, "registers nothing", "from toolrl import hookimpl"),
        ({"other": function("other", mark=hookimpl(specname="toolrl_tool"))}, "no hook 'toolrl_tool'", "toolrl_tools"),
    ],
)
def test_what_would_never_be_called_is_refused(names: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(PluginError) as caught:
        check_plugin_module(module(**names))
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_async_functions_and_async_generators_are_refused() -> None:
    @hookimpl
    async def toolrl_tools() -> Any:
        return []

    @hookimpl
    async def toolrl_rewards() -> Any:
        yield None

    for hook in (toolrl_tools, toolrl_rewards):
        with pytest.raises(PluginError, match="async def"):
            check_plugin_module(module(**{hook.__name__: hook}))


def test_what_is_no_hook_of_the_module_is_left_alone() -> None:
    check_plugin_module(
        module(
            toolrl_tools=function("toolrl_tools"),
            toolrl_plugin_demo=ModuleType("toolrl_plugin_demo"),
            toolrl_version="1",
            by_another_name=function("by_another_name", mark=hookimpl(specname="toolrl_rewards")),
            toolrl_later=function("toolrl_later", mark=hookimpl(optionalhook=True)),
        )
    )


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "returned None"),
        ("text", "returned str 'text'"),
        (5, "returned int 5"),
        ([Component("a", "m:a"), "b"], "gave str 'b'"),
        ([Component("a", "m:a"), Component("a", "m:b")], "gives 'a' twice"),
        ([Component], "gave type"),
    ],
)
def test_a_hook_must_give_components(result: Any, message: str) -> None:
    with pytest.raises(PluginError) as caught:
        check_components("toolrl_tools", result)
    assert message in caught.value.message
