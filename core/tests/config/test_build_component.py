"""Building a component from a config."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toolrl.building import build_component, build_trainer
from toolrl.component import Component
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


def test_without_a_model_the_options_are_none(registry: Registry) -> None:
    assert build_component(registry, "rewards", ComponentUse(use="exact"), CONTEXT, "here").options is None
    with pytest.raises(ConfigError, match=r"here\.options\.x: unknown key; it takes no options \[exact\]"):
        build_component(registry, "rewards", ComponentUse(use="exact", options={"x": 1}), CONTEXT, "here")


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


def test_what_was_built_must_follow_its_protocol(registry: Registry) -> None:
    with pytest.raises(ComponentLoadError) as caught:
        build_component(registry, "parsers", ComponentUse(use="half"), CONTEXT, "here")
    assert caught.value.message == "parser 'half' gave a Half without parse"
    assert caught.value.hint == "It must follow toolrl.protocols.ToolParser."
    with pytest.raises(ComponentLoadError, match="gave a Thing without __len__, __getitem__"):
        build_component(registry, "datasets", ComponentUse(use="rows"), CONTEXT, "here")


def test_a_reward_of_groups_needs_no_score_of_one(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    class Groups:
        def score_group(self, episodes: Any) -> Any:
            return []

    made: Any = Groups()
    monkeypatch.setattr(Component, "load", lambda _: lambda options, context: made)
    assert build_component(registry, "rewards", ComponentUse(use="exact"), CONTEXT, "here") is made
    made = object()
    with pytest.raises(ComponentLoadError, match="without score"):
        build_component(registry, "rewards", ComponentUse(use="exact"), CONTEXT, "here")


def test_an_unknown_name(registry: Registry) -> None:
    with pytest.raises(UnknownComponentError, match="no engine named 'x'"):
        build_component(registry, "engines", ComponentUse(use="x"), CONTEXT, "here")


def test_a_tool_is_made_a_toolset(registry: Registry) -> None:
    # The target gives something that is no tool, which `toolrl.tools` finds out.
    with pytest.raises(ComponentLoadError, match="expected a @tool function, a Tool, a Toolset"):
        build_component(registry, "tools", ComponentUse(use="bare"), CONTEXT, "here")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda config, context: 1 // 0, "trainer 'torch' can't be built: ZeroDivisionError"),
        (lambda config, context: object(), "trainer 'torch' gave a object without prepare, load_model"),
    ],
)
def test_a_trainer_is_checked_like_any_component(target: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Component, "load", lambda _: target)
    found = SimpleNamespace(component=Component("torch", "a:b"))
    registry: Any = SimpleNamespace(get=lambda kind, name: found)
    config: Any = SimpleNamespace(trainer=SimpleNamespace(use="torch"), seed=1)
    with pytest.raises(ComponentLoadError) as caught:
        build_trainer(registry, config)
    assert message in caught.value.message
    assert caught.value.where == "trainer"
