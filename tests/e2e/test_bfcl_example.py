"""The example with BFCL's multi-turn tasks: its ground truth is rewarded; with one call left out it isn't."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Task
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_testing import FakeChatFormat, ScriptedEngine, make_build_context

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "bfcl"
sys.path.insert(0, str(EXAMPLE / "environment"))
bfcl: Any = importlib.import_module("bfcl_environment")
pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("bfcl_eval", "mpmath"))), reason="pip install mpmath; --no-deps bfcl-eval"
)

PER_CATEGORY = None if os.environ.get("TOOLRL_SLOW") else 40


def said(call: str, parameters: dict[str, Sequence[str]]) -> str:
    """A call as the leaderboard writes it, as a model says it."""
    node: Any = ast.parse(call, mode="eval").body
    given = dict(zip(parameters[node.func.id], map(ast.literal_eval, node.args), strict=False))
    given |= {item.arg: ast.literal_eval(item.value) for item in node.keywords}
    return f"<tool_call>\n{json.dumps({'name': node.func.id, 'arguments': given})}\n</tool_call>"


async def replay(plans: Sequence[tuple[Task, Sequence[Sequence[str]]]], max_turns: int = 100) -> list[Episode]:
    """An episode for each task, in which these calls are made in each user turn."""
    context = make_build_context("bfcl")
    services = bfcl.Services(None, context)
    tools = ToolBox([ToolEntry("bfcl", services)])
    rewards = [NamedReward("bfcl", bfcl.Checker(None, context))]
    desk = Environment("bfcl", HermesParser(), FakeChatFormat(), tools, rewards, max_turns=max_turns)
    await tools.start()
    parameters = {it.name: list(it.parameters["properties"]) for specs in services.known.values() for it in specs}
    episodes = []
    for task, turns in plans:
        calls = ["".join(said(call, parameters) for call in turn) for turn in turns]
        engine = ScriptedEngine([text for turn in calls for text in (turn, "Done.") if text])
        (group,) = await Runner(engine, {"bfcl": desk}).run([task], 1, Limits(10**6, 10**7), round_id="replay")
        episodes += group.episodes
    await tools.stop()
    return episodes


def all_tasks() -> list[Task]:
    options = bfcl.DataOptions(categories=["base", "miss_param", "long_context"], limit=PER_CATEGORY)
    source = bfcl.Tasks(options, make_build_context("bfcl"))
    return [source[index] for index in range(len(source))]


def test_the_ground_truth_is_rewarded() -> None:
    tasks = all_tasks()
    episodes = asyncio.run(replay([(task, task.answer) for task in tasks]))
    assert len(episodes) == 3 * (PER_CATEGORY or 199)
    assert [(it.id, it.failure, it.reward, it.correct) for it in episodes if it.reward != 1.0 or it.failure] == []
    assert all(len(it.trajectories) == 1 for it in episodes)
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    assert not [name for name in vars(multi_turn_utils) if name.startswith("toolrl_")], "instances were left"


def test_without_one_call_it_isnt_where_the_checker_says_so() -> None:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    plans, expected = [], []
    for number, task in enumerate(all_tasks()):
        turns = [list(turn) for turn in task.answer]
        del random.Random(number).choice([turn for turn in turns if turn])[-1]
        plans.append((task, turns))
        calls = [[[call] for call in turn] for turn in turns]
        with bfcl.own_name() as name:
            expected.append(float(multi_turn_checker(calls, task.answer, task.extra["bfcl"], "", name)["valid"]))
    assert [episode.reward for episode in asyncio.run(replay(plans))] == expected
    assert sum(expected) < 0.05 * len(expected)


def test_an_episode_that_ends_before_the_users_last_turn_gets_nothing() -> None:
    (task, *_) = all_tasks()
    (episode,) = asyncio.run(replay([(task, task.answer)], max_turns=3))
    assert (episode.stop_reason, episode.reward, episode.correct) == ("max_turns", 0.0, 0.0)
