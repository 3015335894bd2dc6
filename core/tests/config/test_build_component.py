"""Building a component from a config."""

from __future__ import annotations

import pytest

from toolrl.building import build_component
from toolrl.config.frame import ComponentUse
from toolrl.errors import ComponentLoadError, ConfigError, UnknownComponentError
from toolrl.plugins.registry import Registry
from toolrl.protocols import BuildContext

CONTEXT = BuildContext(name="x", where="environments.default.parser", seed=3)


def test_a_target_gets_checked_options_and_the_context(registry: Registry) -> None:
    use = ComponentUse(use="demo/hermes", options={"precision": "4"})
    built = build_component(registry, "parsers", use, CONTEXT, "here")
    assert built.options.precision == 4
    assert built.options.mode == "fast"
    assert built.context is CONTEXT


def test_wrong_options_are_a_config_error_with_their_path(registry: Registry) -> None:
    use = ComponentUse(use="hermes", options={"precision": 0, "server": {}})
    with pytest.raises(ConfigError) as caught:
        build_component(registry, "parsers", use, CONTEXT, "environments.default.parser")
    assert caught.value.problems == [
        "environments.default.parser.options.precision: Input should be ≥ 1 (got 0) [hermes]",
        "environments.default.parser.options.server.url: missing, and it has no default [hermes]",
    ]


def test_a_target_that_raises_is_named_with_its_place(registry: Registry) -> None:
    with pytest.raises(ComponentLoadError) as caught:
        build_component(registry, "parsers", ComponentUse(use="failing"), CONTEXT, "here")
    assert caught.value.message == "parser 'failing' can't be built: RuntimeError: no such server"
    assert caught.value.where == "here"
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_unknown_name(registry: Registry) -> None:
    with pytest.raises(UnknownComponentError, match="no engine named 'x'"):
        build_component(registry, "engines", ComponentUse(use="x"), CONTEXT, "here")


def test_a_tool_is_made_a_toolset(registry: Registry) -> None:
    # The target gives something that is no tool, which `toolrl.tools` finds out.
    with pytest.raises(ComponentLoadError, match="expected a @tool function, a Tool, a Toolset"):
        build_component(registry, "tools", ComponentUse(use="bare"), CONTEXT, "here")
