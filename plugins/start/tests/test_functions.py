"""Python of the user's own as tools, rewards, data sets, parsers and harnesses."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from toolrl.building import build_component
from toolrl.config.frame import ComponentUse
from toolrl.config.load import check_config
from toolrl.config.remarks import missing_files
from toolrl.errors import ToolrlError
from toolrl.plugins.registry import load_registry
from toolrl.types import Score, Task
from toolrl_testing.fakes import make_build_context, make_episode

OWN = """
from toolrl.protocols import ToolParser
from toolrl.types import Message, Score, Task

def exact(episode):
    return episode.task.answer == "4"

def scaled(episode, factor=1.0):
    return factor * 2

async def later(episode):
    return Score(0.5)

class Classy:
    def __init__(self, value):
        self._value = value
    def score(self, episode):
        return Score(self._value)

def factory(options, context):
    return Classy(options["value"])

def trl(prompts, completions, **kwargs):
    return [0.0 for _ in completions]

def short_trl(completions, **kwargs):
    return [0.0 for _ in completions]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 0.0

number = 3

LIST = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]
TASKS = [Task("a", (Message("user", "?"),))]

def rows(count=2):
    return LIST[:count]

def stream(count):
    yield from LIST[:count]

def frame(count):
    return count

class Splitter(ToolParser):
    def parse(self, text, **more): ...
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "own.py"
    file.write_text(OWN, encoding="utf-8")
    return str(file)


def built(kind: str, target: str, **options: Any) -> Any:
    use = ComponentUse(use="function", options={"target": target, **options})
    context = make_build_context("function", where="data.train")
    return build_component(load_registry(), kind, use, context, "here")


@pytest.mark.parametrize(
    ("name", "options", "score"),
    [
        ("exact", {}, Score(1.0, metrics={"correct": 1.0})),
        ("scaled", {"factor": 3}, Score(6.0)),
        ("later", {}, Score(0.5)),
        ("Classy", {"value": 0.25}, Score(0.25)),
        ("factory", {"value": 0.25}, Score(0.25)),
    ],
)
def test_rewards(own: str, name: str, options: dict[str, Any], score: Score) -> None:
    reward = built("rewards", f"{own}:{name}", options=options)
    found = reward.score(make_episode(task=Task("t", (), answer="4")))
    assert (asyncio.run(_result(found)) if inspect.isawaitable(found) else found) == score


async def _result(awaitable: Any) -> Any:
    return await awaitable


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("{missing}:exact", "there is no Python file"),
        ("{own}:exakt", "has no 'exakt'"),
        ("{own}:trl", "trl(prompts, completions, **kwargs) can't score an episode"),
        ("{own}:short_trl", "In place of TRL's completions take episode.final_text"),
        ("{own}:compute_score", "the reward `verl` takes a file with compute_score"),
        ("{own}:number", "is of type int; expected a function of an episode"),
    ],
)
def test_mistakes_are_found_before_the_model_is_loaded(own: str, target: str, problem: str) -> None:
    registry = load_registry()
    reward = {"use": "function", "options": {"target": target.format(own=own, missing=own + "x.py")}}
    tree = {"model": {"path": "m"}, "environments": {"default": {"rewards": [reward]}}}
    lines = list(missing_files(check_config(tree, registry=registry).config, registry, ()))
    assert any(line.startswith("environments.default.rewards[0].options: ") and problem in line for line in lines)


def test_options_that_a_function_does_not_take(own: str) -> None:
    with pytest.raises(ToolrlError, match="unexpected keyword argument 'facto'"):
        built("rewards", f"{own}:scaled", options={"facto": 3})
    with pytest.raises(ToolrlError, match="options have no effect"):
        built("datasets", f"{own}:LIST", options={"count": 1})


@pytest.mark.parametrize(
    ("name", "more", "count"),
    [("LIST", {}, 2), ("LIST", {"limit": 1}, 1), ("rows", {"options": {"count": 1}}, 1), ("rows", {}, 2),
     ("stream", {"options": {"count": 2}}, 2)],
)  # fmt: skip
def test_data_sets(own: str, name: str, more: dict[str, Any], count: int) -> None:
    source = built("datasets", f"{own}:{name}", fields={"prompt": "question"}, environment="sums", **more)
    assert len(source) == count
    assert (source[0].messages[0].content, source[0].answer, source[0].environment) == ("1 + 1?", "2", "sums")
    assert source.digest()


def test_tasks_and_what_has_no_rows(own: str) -> None:
    assert built("datasets", f"{own}:TASKS")[0].id == "a"
    with pytest.raises(ToolrlError, match="a int has no length"):
        built("datasets", f"{own}:frame", options={"count": 3})


def test_a_parser(own: str) -> None:
    assert type(built("parsers", f"{own}:Splitter")).__name__ == "Splitter"
    with pytest.raises(ToolrlError, match="without play"):
        built("harnesses", f"{own}:Splitter")
