"""`PluginContract`: all contracts of a plugin in one class.

    from toolrl_testing import PluginContract

    class TestContract(PluginContract):
        plugin = "calculator"
        tool_calls = {"calculator": [{"expression": "1 + 1"}]}

The class reads the registry when it is defined and keeps the tests that apply: those of the plugin itself, and for each
of its components those of its kind. What the tests can't know (example calls, texts, options, a small model) is given
by the attributes and methods below.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from toolrl.component import Component
from toolrl.kinds import KINDS
from toolrl.plugins.registry import load_registry
from toolrl.protocols import BuildContext, Toolset
from toolrl.tools.toolset import as_toolset
from toolrl.types import Episode, Task
from toolrl_testing.checks import (
    chat_formats,
    engines,
    fail,
    harnesses,
    others,
    parsers,
    require,
    rewards,
    tools,
    training,
)
from toolrl_testing.checks import plugin as plugin_checks
from toolrl_testing.fakes import make_build_context, make_task

ARGUMENTS = {kind.singular: kind.name for kind in KINDS.values()}
"""Test argument to the kind whose components it runs over. The argument `component` runs over those of every kind."""


class PluginContract:
    """Subclass it as `TestContract` and set `plugin`."""

    plugin: ClassVar[str] = ""
    """The name of the entry point."""
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Component name to the options it is built with; needed where an option has no default."""
    tool_calls: ClassVar[Mapping[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]]] = {}
    """Tool name to arguments of calls that succeed, one or several."""
    tools_kwargs: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Tool name to `create_kwargs` and the like, as the task that the tools see has them."""
    tools_answer_alike: ClassVar[bool] = True
    """False where a tool's answers depend on time or chance, so that two episodes can't be compared."""
    parser_texts: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Parser name to texts of turns that hold a call of `calculator` or `search`."""
    answer: ClassVar[Any] = "4"
    """The ground truth of the tasks that rewards see."""
    harness_hears: ClassVar[Sequence[str]] = ("4",)
    """What the model says to a harness, a text a turn; the last is repeated."""
    formats_take_tools: ClassVar[bool] = True
    """False for a chat format that refuses tools."""

    # What a plugin's tests may override.

    def task(self) -> Task:
        """The task that tools and harnesses see."""
        return make_task(answer=self.answer, tools_kwargs=self.tools_kwargs)

    def episodes(self) -> Sequence[Episode]:
        """The episodes that rewards see."""
        return rewards.sample_episodes(self.answer)

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        """The options that a component is built with; override it for those that need a file."""
        return self.options.get(name, {})

    def build_context(self, kind: str, name: str, tmp_path: Path) -> BuildContext | None:
        """The context that a component is built with. Override it for engines and chat formats, which need weights or a
        tokenizer: without it their contracts are skipped."""
        return None if kind in ("engines", "chat_formats") else make_build_context(name, run_dir=tmp_path)

    # The plugin itself.

    def test_it_is_installed_and_usable(self) -> None:
        plugin_checks.entry_point(self.plugin)
        info = load_registry().plugin(self.plugin)
        if info is None:
            fail(f"the registry doesn't know the plugin {self.plugin!r}")
        require(info.usable, f"{self.plugin} is {info.describe()}\n{info.traceback}{info.hint}")
        require(any(info.components.values()), f"{self.plugin} registers no component")

    def test_discovery_imports_nothing_heavy(self) -> None:
        plugin_checks.check_discovery_is_light(plugin_checks.entry_point(self.plugin).value)

    def test_descriptors(self) -> None:
        plugin_checks.check_descriptors(_components(self.plugin, "component"))

    def test_component_resolves(self, component: tuple[str, Component[Any]]) -> None:
        plugin_checks.check_resolves(component[1])

    def test_component_options(self, component: tuple[str, Component[Any]]) -> None:
        plugin_checks.check_options(component[1])

    # Tools.

    def test_tool_specs(self, tool: Component[Any], tmp_path: Path) -> None:
        asyncio.run(tools.check_specs(lambda: self.toolset(tool, tmp_path), self.task()))

    def test_tool_calls(self, tool: Component[Any], tmp_path: Path) -> None:
        self._check_tool(tool, tmp_path, tools.check_calls)

    def test_tool_answers_odd_arguments(self, tool: Component[Any], tmp_path: Path) -> None:
        self._check_tool(tool, tmp_path, tools.check_odd_arguments)

    def test_tool_keeps_episodes_apart(self, tool: Component[Any], tmp_path: Path) -> None:
        self._check_tool(tool, tmp_path, tools.check_isolation, same_answers=self.tools_answer_alike)

    def test_tool_leaves_nothing_behind(self, tool: Component[Any], tmp_path: Path) -> None:
        self._check_tool(tool, tmp_path, tools.check_release)

    # Parsers.

    def test_parser_finds_calls(self, parser: Component[Any], tmp_path: Path) -> None:
        texts = self.parser_texts.get(parser.name)
        if not texts:
            fail(f'no example turn of {parser.name!r}: add parser_texts = {{"{parser.name}": ["…"]}}')
        parsers.check_calls_found(self.built("parsers", parser, tmp_path), texts)

    def test_parser_is_total(self, parser: Component[Any], tmp_path: Path) -> None:
        parsers.check_total(self.built("parsers", parser, tmp_path), self.parser_texts.get(parser.name, ()))

    def test_parser_is_linear(self, parser: Component[Any], tmp_path: Path) -> None:
        parsers.check_linear(self.built("parsers", parser, tmp_path), self.parser_texts.get(parser.name, ()))

    # Rewards, data sets, observers, commands.

    def test_reward_scores(self, reward: Component[Any], tmp_path: Path) -> None:
        asyncio.run(rewards.check_scores(self.built("rewards", reward, tmp_path), self.episodes()))

    def test_dataset_rows(self, dataset: Component[Any], tmp_path: Path) -> None:
        others.check_rows(self.built("datasets", dataset, tmp_path))

    def test_dataset_pickles(self, dataset: Component[Any], tmp_path: Path) -> None:
        others.check_pickles(self.built("datasets", dataset, tmp_path))

    def test_observer_events(self, observer: Component[Any], tmp_path: Path) -> None:
        others.check_observer(self.built("observers", observer, tmp_path))

    def test_command_arguments(self, command: Component[Any], tmp_path: Path) -> None:
        others.check_command(self.built("commands", command, tmp_path))

    # Harnesses.

    def test_harness_plays(self, harness: Component[Any], tmp_path: Path) -> None:
        harnesses.check_plays(self.built("harnesses", harness, tmp_path), self.harness_hears, self.task())

    def test_harness_cancellation(self, harness: Component[Any], tmp_path: Path) -> None:
        harnesses.check_cancel(self.built("harnesses", harness, tmp_path), self.task())

    # Advantage estimators and policy losses.

    def test_advantages(self, advantage: Component[Any], tmp_path: Path) -> None:
        training.check_advantages(self.built("advantages", advantage, tmp_path), training.sample_groups())

    def test_policy_loss(self, policy_loss: Component[Any], tmp_path: Path) -> None:
        training.check_policy_loss(self.built("policy_losses", policy_loss, tmp_path))

    # Chat formats.

    def test_chat_format_laws(self, chat_format: Component[Any], tmp_path: Path) -> None:
        chat_formats.check_laws(self.built("chat_formats", chat_format, tmp_path), tools=self.formats_take_tools)

    def test_chat_format_text(self, chat_format: Component[Any], tmp_path: Path) -> None:
        chat_formats.check_text(self.built("chat_formats", chat_format, tmp_path))

    # Engines.

    def test_engine_sampling(self, engine: Component[Any], tmp_path: Path) -> None:
        self._check_engine(engine, tmp_path, engines.check_sampling)

    def test_engine_stops(self, engine: Component[Any], tmp_path: Path) -> None:
        self._check_engine(engine, tmp_path, engines.check_stops, needs="chat_format")

    def test_engine_sessions(self, engine: Component[Any], tmp_path: Path) -> None:
        self._check_engine(engine, tmp_path, engines.check_sessions)

    def test_engine_cancellation(self, engine: Component[Any], tmp_path: Path) -> None:
        self._check_engine(engine, tmp_path, engines.check_cancel)

    def test_engine_versions(self, engine: Component[Any], tmp_path: Path) -> None:
        self._check_engine(engine, tmp_path, engines.check_versions, needs="weights")

    # Building.

    def built(self, kind: str, component: Component[Any], tmp_path: Path) -> Any:
        """The component with the test's options and context; skips the test where there is no context."""
        return self._build(kind, component, tmp_path)[0]

    def toolset(self, component: Component[Any], tmp_path: Path) -> Toolset:
        """A tool component as the toolset that a run would make of it."""
        context = self.build_context("tools", component.name, tmp_path) or make_build_context(component.name)
        return as_toolset(component.load(), self._options("tools", component, tmp_path), context)

    def _build(self, kind: str, component: Component[Any], tmp_path: Path) -> tuple[Any, BuildContext]:
        context = self.build_context(kind, component.name, tmp_path)
        if context is None:
            pytest.skip(f"override build_context to test the {kind} of this plugin: {component.name}")
        return component.load()(self._options(kind, component, tmp_path), context), context

    def _options(self, kind: str, component: Component[Any], tmp_path: Path) -> Any:
        model = component.load_options()
        given = self.component_options(kind, component.name, tmp_path)
        try:
            return model.model_validate(dict(given)) if model is not None else None
        except ValidationError as error:
            fail(f'the options of {component.name!r} don\'t fit: add options = {{"{component.name}": {{…}}}}\n{error}')

    def _check_tool(self, component: Component[Any], tmp_path: Path, check: Callable[..., Any], **options: Any) -> None:
        """Run a check on a tool with the example calls."""
        calls = {name: [given] if isinstance(given, Mapping) else given for name, given in self.tool_calls.items()}
        asyncio.run(check(lambda: self.toolset(component, tmp_path), calls, task=self.task(), **options))

    def _check_engine(
        self, component: Component[Any], tmp_path: Path, check: Callable[..., Any], needs: str | None = None
    ) -> None:
        """Run a check on the engine, started before and stopped after it, with what it needs of the context."""

        async def run() -> None:
            engine, context = self._build("engines", component, tmp_path)
            given = [getattr(context, needs)] if needs else []
            if None in given:
                pytest.skip(f"build_context gave no {needs}, which this test needs")
            try:
                await engine.start()
                await check(engine, tuple(range(3, 19)), *given)
            finally:
                await engine.stop()

        asyncio.run(run())

    # Which tests there are.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.plugin:
            return
        for name, test in inspect.getmembers(cls, inspect.isfunction):
            argument = _argument_of(test) if name.startswith("test_") else None
            if argument is not None and not _components(cls.plugin, argument):
                setattr(cls, name, None)  # No component of that kind: not a test of this plugin.

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test over the plugin's components of the kind that it has as argument."""
        argument = _argument_of(metafunc.function)
        if argument is not None:
            found = _components(self.plugin, argument)
            values = found if argument == "component" else [component for _, component in found]
            names = [f"{kind}-{item.name}" if argument == "component" else item.name for kind, item in found]
            metafunc.parametrize(argument, values, ids=names)


def _argument_of(test: Any) -> str | None:
    names = inspect.signature(test).parameters
    return next((name for name in names if name in ARGUMENTS or name == "component"), None)


def _components(plugin: str, argument: str) -> list[tuple[str, Component[Any]]]:
    info = load_registry().plugin(plugin)
    if info is None:
        return []
    kinds = info.components if argument == "component" else [ARGUMENTS[argument]]
    return [(kind, component) for kind in kinds for component in info.components.get(kind, ())]
