"""The guides' tools in whole episodes, as a run has them: both signatures, several tools, many episodes at once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import verl_guide_tools
from verl_harness import GEO3K, Make, entry

from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Message, ParsedTurn, ToolCall
from toolrl_plugin_verl.dataset import VerlDataset
from toolrl_plugin_verl.options import VerlDatasetOptions, VerlRewardOptions
from toolrl_plugin_verl.reward import VerlReward
from toolrl_testing import FakeChatFormat, ScriptedEngine, make_build_context

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    own = extra_info["rollout_reward_scores"]
    return {
        "score": float(f"#### {ground_truth}" in solution_str),
        "index": extra_info["index"],
        "count": extra_info["count"],
        "rewards": len(extra_info["tool_rewards"]),
        "your_tool": own["your_tool"],
        "geo3k": own["calc_geo3k_reward"],
        "turns": extra_info["num_turns"],
    }
"""
TOOLS = """
tools:
{your}{geo3k}
  - class_name: verl_guide_tools.SearchTool
    config: {{type: native, retrieval_service_url: '{url}', topk: 1, num_workers: 8, rate_limit: 4}}
    tool_schema:
      type: function
      function:
        name: search
        description: Searches.
        parameters:
          type: object
          properties: {{query_list: {{type: array, items: {{type: string}}, description: Queries}}}}
          required: [query_list]
  - class_name: verl_guide_tools.LatestTool
    config: {{type: native}}
"""
ROLL = Callable[[int, int], list[Episode]]


class CallLines:
    """Each line `call NAME JSON` is a call; a turn without one is final."""

    def stops(self, turn_text: str) -> tuple[str, ...]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        calls = [
            ToolCall(match[1], json.loads(match[2]), span=match.span(), raw=match[0])
            for match in re.finditer(r"^call (\w+) (.*)$", text, re.MULTILINE)
        ]
        return ParsedTurn(tuple(calls), "" if calls else text, status="calls" if calls else "final")

    def render_results(self, records: Any) -> list[Message]:
        return [Message("tool", record.result.text, name=record.call.name) for record in records]


def row(number: int) -> dict[str, Any]:
    answer = {"create_kwargs": {"ground_truth": str(number)}}
    tools_kwargs = {
        "your_tool": answer,
        "calc_geo3k_reward": {"create_kwargs": {"ground_truth": f"{number}\\sqrt{{3}}"}},
        "search": {"create_kwargs": {"ground_truth": str(number), "question": "?", "data_source": "searchR1_nq"}},
        "latest": {"create_kwargs": {"start": number}},
    }
    return {
        "data_source": "mine",
        "agent_name": "tool_agent",
        "prompt": [{"role": "user", "content": f"What is {number}?"}],
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"index": number, "need_tools_kwargs": True, "tools_kwargs": tools_kwargs},
    }


def say(prompt: str) -> str:
    """A first turn with four calls, a second one with two, and the answer."""
    found = re.search(r"What is (\d+)\?", prompt)
    assert found is not None
    number = int(found[1])
    if "1 of " not in prompt:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("your_tool", {"answer": "wrong"}),
            ("calc_geo3k_reward", {"answer": f"\\sqrt{{{3 * number * number}}}"}),
            ("search", {"query_list": [f"q{number}"]}),
            ("latest", {}),
        ]
    elif "2 of " not in prompt:
        calls = [("your_tool", {"answer": str(number)}), ("latest", {})]
    else:
        return f"#### {number}"
    return "\n".join(f"call {name} {json.dumps(arguments)}" for name, arguments in calls)


@pytest.fixture
def roll(tmp_path: Path, make_toolset: Make, retriever: str) -> ROLL:
    """`size` episodes of each of so many rows, from the data file on."""

    def run(rows: int, size: int) -> list[Episode]:
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(row(n)) + "\n" for n in range(1, rows + 1)))
        (tmp_path / "reward.py").write_text(REWARD)
        yaml = TOOLS.format(your=entry("YourTool", "your_tool"), geo3k=GEO3K, url=retriever)
        context = make_build_context("verl", run_dir=tmp_path)
        source = VerlDataset(VerlDatasetOptions(path=str(tmp_path / "data.jsonl")), context)
        reward = VerlReward(VerlRewardOptions(path=str(tmp_path / "reward.py")), context)
        box = ToolBox([ToolEntry("verl", make_toolset(yaml, step_rewards=False), weight=0.0)])
        place = Environment("default", CallLines(), FakeChatFormat(), box, [NamedReward("verl", reward)], max_turns=4)

        async def main() -> list[Episode]:
            await box.start()
            try:
                runner = Runner(ScriptedEngine(say), {"default": place}, concurrency=256)
                limits = Limits(max_turn_tokens=400, max_episode_tokens=6000)
                tasks = [source[n] for n in range(rows)]
                groups = await runner.run(tasks, size, limits, round_id="train-1")
                return [episode for group in groups for episode in group.episodes]
            finally:
                await box.stop()

        return asyncio.run(main())

    return run


def check(episode: Episode, number: int) -> None:
    """What the tools of this number's episode say, and nothing of another's."""
    assert episode.failure is None, episode.failure
    assert episode.messages[1] == Message("user", f"Begin with {number}.")
    texts = [record.result.text for record in episode.calls]
    assert [record.result.error for record in episode.calls] == [None] * 6
    assert texts[0] == "call 1: wrong"
    # 3n² under the root is n√3.
    assert texts[1] == f"Current parsed answer='\\\\sqrt{{{3 * number * number}}}' reward=1.0"
    assert json.loads(texts[2])["result"] == f"Doc 1 (Title: About q{number})\nText 0"
    assert texts[3:] == [f"1 of {number}", f"call 2: {number}", f"2 of {number}"]
    assert episode.reward == 1.0
    metrics = {key.removeprefix("verl/"): value for key, value in episode.metrics.items() if key.startswith("verl/")}
    wanted = {"index": number, "count": 2, "your_tool": 1, "geo3k": 1, "turns": 6, "correct": 1}
    # LatestTool gives no reward; the other four calls do.
    assert metrics == {**wanted, "rewards": 4}
    scores = {"your_tool": 1.0, "calc_geo3k_reward": 1.0}
    assert episode.notes == {"extra_fields": {"count": 2}, "rollout_reward_scores": scores}


def test_no_state_leaks_between_episodes_of_all_tools(roll: ROLL) -> None:
    episodes = roll(24, 4)
    assert len(episodes) == 96
    for position, episode in enumerate(episodes):
        check(episode, position // 4 + 1)
    stages = [stage for stage, _ in verl_guide_tools.LOG]
    assert stages.count("create") == stages.count("release") == 96
