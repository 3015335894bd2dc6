"""Whole episodes with verl's data, tools, reward and dump, as a run has them; only the engine is scripted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import verl_guide_tools
from verl_harness import YOUR_TOOL, Make

from toolrl.protocols import StepReport
from toolrl.rollout.environment import Environment, Limits, NamedReward
from toolrl.rollout.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Group, Message, ParsedTurn, ToolCall
from toolrl_plugin_verl.dataset import VerlDataset
from toolrl_plugin_verl.dump import VerlDump
from toolrl_plugin_verl.options import VerlDatasetOptions, VerlDumpOptions, VerlRewardOptions
from toolrl_plugin_verl.reward import VerlReward
from toolrl_testing import FakeChatFormat, ScriptedEngine, make_build_context

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float("#### " + ground_truth in solution_str) + sum(extra_info["tool_rewards"]),
            "own": extra_info["rollout_reward_scores"]["your_tool"], "index": extra_info["index"]}
"""


class Calls:
    """A turn `call ANSWER` calls `your_tool`; every other one is final."""

    def stops(self, turn_text: str) -> tuple[str, ...]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        if text.startswith("call "):
            return ParsedTurn((ToolCall("your_tool", {"answer": text[5:]}, span=(0, len(text))),), status="calls")
        return ParsedTurn(content=text)

    def render_results(self, records: Any) -> list[Message]:
        return [Message("tool", record.result.text, name=record.call.name) for record in records]


def row(number: int) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"What is {number}?"}],
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {
            "index": number,
            "tools_kwargs": {"your_tool": {"create_kwargs": {"ground_truth": str(number)}}},
            "tool_selection": ["your_tool"],
        },
    }


def roll(folder: Path, make_toolset: Make, script: list[str], *, size: int, rows: int) -> list[Group]:
    (folder / "data.jsonl").write_text("".join(json.dumps(row(n)) + "\n" for n in range(rows)))
    (folder / "reward.py").write_text(REWARD)
    context = make_build_context("verl", run_dir=folder)
    reward = VerlReward(VerlRewardOptions(path=str(folder / "reward.py")), context)
    dump = VerlDump(VerlDumpOptions(rollout_data_dir=str(folder / "dumps")), context)
    source = VerlDataset(VerlDatasetOptions(path=str(folder / "data.jsonl")), context)
    box = ToolBox([ToolEntry("verl", make_toolset(YOUR_TOOL, step_rewards=False), weight=0.0)])
    place = Environment("default", Calls(), FakeChatFormat(), box, [NamedReward("verl", reward)], max_turns=3)
    info: Any = SimpleNamespace(directory=folder)

    async def run() -> list[Group]:
        runner = Runner(
            ScriptedEngine(script),
            {"default": place},
            concurrency=256,
            on_episode=lambda one: dump.toolrl_episode_end(info, one),
        )
        await box.start()
        try:
            limits = Limits(max_turn_tokens=100, max_episode_tokens=3000)
            return await runner.run([source[n] for n in range(rows)], size, limits, round_id="train-1")
        finally:
            await box.stop()

    groups = asyncio.run(run())
    dump.toolrl_step_end(info, StepReport(1, "train", {}))
    return groups


def test_an_episode_from_row_to_dump(tmp_path: Path, make_toolset: Make) -> None:
    (first, second) = roll(tmp_path, make_toolset, ["call 0", "call 1", "#### 1"], size=2, rows=2)
    one = second.episodes[0]
    assert one.failure is None
    assert [record.result.text for record in one.calls] == ["call 1: 0", "call 2: 1"]
    # 1 for the answer, the tool's −0.5 and 0.5; the tool's own reward is seen, and weighs nothing.
    assert one.reward == 1.0
    assert (one.metrics["verl/own"], one.metrics["verl/index"]) == (1.0, 1.0)
    assert first.episodes[0].reward == 0.0
    lines = [json.loads(line) for line in (tmp_path / "dumps" / "1.jsonl").read_text().splitlines()]
    assert [(line["gts"], line["score"], line["index"]) for line in lines] == [
        ("0", 0.0, 0.0),
        ("0", 0.0, 0.0),
        ("1", 1.0, 1.0),
        ("1", 1.0, 1.0),
    ]


def test_256_episodes_at_once_each_see_their_own_state(tmp_path: Path, make_toolset: Make) -> None:
    groups = roll(tmp_path, make_toolset, ["call 5", "call 5", "#### 5"], size=8, rows=32)
    episodes = [one for group in groups for one in group.episodes]
    assert len(episodes) == 256
    assert all(one.failure is None for one in episodes)
    for group in groups:
        right = group.task.answer == "5"
        assert {one.metrics["verl/own"] for one in group.episodes} == {float(right)}
        assert all([r.result.text for r in one.calls] == ["call 1: 5", "call 2: 5"] for one in group.episodes)
    stages = [stage for stage, _ in verl_guide_tools.LOG]
    assert stages.count("create") == stages.count("release") == 256
    assert stages.count("execute") == 512
    assert stages.count("calc_reward") == 512 + 256
