"""Classes of AReaL's BaseTool kind, as they are written there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ConfigError, DataError
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.toolset import as_toolset
from toolrl.types import Episode, Markers
from toolrl_plugin_areal.options import ArealToolOptions
from toolrl_plugin_areal.parser import ArealTirParser
from toolrl_plugin_areal.tool import ArealTool
from toolrl_plugin_tir.parser import TirParser
from toolrl_testing import make_build_context
from toolrl_testing.fakes import FakeChatFormat, ScriptedEngine, make_task

BASE = """
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from areal.utils import logging

logger = logging.getLogger("Tool Base")

class ToolCallStatus(Enum):
    SUCCESS = "success"
    ERROR = "error"

class ToolType(Enum):
    PYTHON = "python"
    UNIT = "unit"

@dataclass
class ToolDescription:
    name: str
    description: str
    parameters: dict
    parameter_prompt: str
    example: str

@dataclass
class ToolMarkers:
    start_markers: list
    end_markers: list

class BaseTool(ABC):
    def __init__(self, timeout=30, debug_mode=False):
        self.timeout = timeout

    async def async_execute(self, parameters):
        return self.execute(parameters)
"""
TOOLS = """
import re
from areal.utils import logging
from .base import BaseTool, ToolCallStatus, ToolDescription, ToolMarkers, ToolType

logger = logging.getLogger("Unit Tool")
closed = []

class UnitTool(BaseTool):
    count = 0

    @property
    def tool_type(self):
        return ToolType.UNIT

    @property
    def description(self):
        return ToolDescription("unit converter", "Converts to metres.", {"text": "A length"}, "Give a length.", "")

    @property
    def markers(self):
        return ToolMarkers(["<unit>", "```unit"], ["</unit>", "```"])

    def parse_parameters(self, text):
        return {"text": re.search(r"<unit>(.*?)</unit>", text, re.DOTALL | re.IGNORECASE)[1].strip()}

    def execute(self, parameters):
        self.count += 1
        if not parameters["text"].endswith("km"):
            return f"what is {parameters['text']}?", ToolCallStatus.ERROR
        return f"{int(parameters['text'][:-2]) * 1000} m, call {self.count}", ToolCallStatus.SUCCESS

    def close(self):
        closed.append(self)

class SlowUnitTool(UnitTool):
    async def aexecute(self, parameters):
        return f"slowly: {parameters['text']}", ToolCallStatus.SUCCESS

class BrokenTool(UnitTool):
    def __init__(self, timeout):
        raise RuntimeError("no licence")

class PythonTool(UnitTool):
    @property
    def tool_type(self):
        return "python"

    @property
    def markers(self):
        return ToolMarkers(["```python", "<python>"], ["```", "</python>"])

    def parse_parameters(self, text):
        return {"code": re.search(r"```python\\n(.*?)\\n```", text, re.DOTALL)[1]}

    def execute(self, parameters):
        return f"ran {parameters['code']}", ToolCallStatus.SUCCESS
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the package `unit_tools`; what it imports is forgotten again."""
    package = tmp_path / "unit_tools"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "base.py").write_text(BASE)
    (package / "unit_tool.py").write_text(TOOLS)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("unit_tools", "areal"):
            del sys.modules[name]


def made(folder: Path, name: str = "UnitTool", **more: Any) -> Any:
    options = ArealToolOptions(target=f"unit_tools.unit_tool:{name}", python_path=[str(folder)], **more)
    return ArealTool(options, make_build_context("areal_tool", where="tools[0]"))


def play(tool: Any, script: Sequence[str], parser: Any = None) -> Episode:
    chat = FakeChatFormat()
    entry = ToolEntry("areal_tool", as_toolset(tool, None, make_build_context("areal_tool")))
    environment = Environment("default", parser or ArealTirParser(), chat, ToolBox([entry]), max_turns=4)
    engine = ScriptedEngine(script, chat)

    async def main() -> Episode:
        await environment.tools.start()
        plan = EpisodePlan(make_task(), "group", 0, seed=1)
        limits = Limits(max_turn_tokens=400, max_episode_tokens=4000)
        episode = await EpisodeRun(plan, environment, engine, limits).run()
        await environment.tools.stop()
        return episode

    return asyncio.run(main())


@pytest.mark.parametrize("parser", [ArealTirParser(), TirParser()])
def test_a_third_tool_is_called_by_its_markers(folder: Path, parser: Any) -> None:
    tool = made(folder)
    script = ["So <unit>1 km</unit>, which is never said", "and ```", "unit\n2km\n```", "but <unit>x</unit>", "Done."]
    episode = play(tool, script, parser)
    assert (episode.failure, episode.stop_reason) == (None, "final")
    said = [record.result.text for record in episode.calls]
    assert said == ["1000 m, call 1", "2000 m, call 2", "Error: Tool execution failed - what is x?"]
    assert episode.turns[0].segments[-1].text == "\n```output\n1000 m, call 1\n```\n"
    assert len(sys.modules["unit_tools.unit_tool"].closed) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("fails", ["import package_of_areal_that_is_missing", "{}['older']", ""])
def test_a_tool_loads_in_the_folder_of_a_clone(folder: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    (folder / "areal" / "utils").mkdir(parents=True)
    (folder / "areal" / "__init__.py").write_text(f"from . import utils\n{fails}\n")
    (folder / "areal" / "utils" / "__init__.py").touch()
    (folder / "areal" / "utils" / "logging.py").write_text("from logging import getLogger\n")
    monkeypatch.syspath_prepend(str(folder))
    episode = play(made(folder), ["<unit>1 km</unit>", "Done."])
    assert [record.result.text for record in episode.calls] == ["1000 m, call 1"]
    assert hasattr(sys.modules["areal"], "__path__") is (not fails)  # The clone's own where it can be.


def test_a_class_that_awaits(folder: Path) -> None:
    episode = play(made(folder, "SlowUnitTool"), ["<unit>1 km</unit>", "Done."])
    assert [record.result.text for record in episode.calls] == ["slowly: 1 km"]


def test_the_markers_that_the_parser_knows_stay_its_own(folder: Path) -> None:
    tool = made(folder, "PythonTool")
    assert tool.spec.markers is None
    assert made(folder).spec.markers == Markers(("<unit>", "```unit"), ("</unit>", "```"))
    episode = play(tool, ["```", "py\nprint(1)\n```", "<python>2</python>", "Done."])
    assert [record.result.text for record in episode.calls] == ["ran print(1)", "ran 2"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("unit_tools.unit_tool:BrokenTool", "can't be made: RuntimeError: no licence"),
        ("unit_tools.unit_tool:closed", "has no tool_type"),
        ("unit_tools.nowhere:Nothing", "can't be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_no_tool(folder: Path, target: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ArealTool(ArealToolOptions(target=target, python_path=[str(folder)]), make_build_context("areal_tool"))


def test_the_hint_names_what_is_missing(folder: Path) -> None:
    (folder / "unit_tools" / "other.py").write_text("import qwen_agent_that_is_missing\n")
    for module, hint in (("unit_tools.other", "'qwen_agent_that_is_missing'"), ("nowhere.tools", "`python_path`")):
        options = ArealToolOptions(target=f"{module}:X", python_path=[str(folder)])
        with pytest.raises(ConfigError) as caught:
            ArealTool(options, make_build_context("areal_tool"))
        assert hint in (caught.value.hint or "")


def test_a_folder_that_is_not_there_is_told_before_a_run(tmp_path: Path) -> None:
    ArealToolOptions(target="a:B", python_path=[str(tmp_path)]).check_files()
    with pytest.raises(DataError, match="python_path: there is no folder"):
        ArealToolOptions(target="a:B", python_path=[str(tmp_path / "none")]).check_files()
