"""Whole episodes with classes of RLFactory's users; only the engine is scripted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.runner import Runner
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode
from toolrl_plugin_rlfactory.options import EnvParserOptions, EnvRewardOptions, EnvToolOptions
from toolrl_plugin_rlfactory.parser import RLFactoryParser
from toolrl_plugin_rlfactory.reward import RLFactoryReward
from toolrl_plugin_rlfactory.toolset import RLFactoryToolset
from toolrl_testing import FakeChatFormat, ScriptedEngine, make_build_context, make_task

GUIDE = Path(__file__).parent / "support" / "rlfactory_guide.py"
CITY = {"tool_manager": f"{GUIDE}:CityManager", "env": f"{GUIDE}:CityEnv"}
TASK = {"answer": {"target": ["717710"]}}

_GUESSING = f"""
import sys

sys.path.insert(0, {str(GUIDE.parent)!r})
from rlfactory_guide import CityEnv, CityManager


def hint(text):
    return "higher" if int(text) < 4 else "lower" if int(text) > 4 else ""
"""
GUESSING = {
    "step": _GUESSING
    + """

class GuessManager(CityManager):
    pass


class GuessEnv(CityEnv):
    def step(self, responses, tokenizer=None):
        if "<tool_call>" in responses[0]:
            return super().step(responses, tokenizer)
        said = [hint(text) for text in responses]
        return said, [not text for text in said], [1] * len(said), [0] * len(said)
""",
    "execute_actions": _GUESSING
    + """

class GuessManager(CityManager):
    def execute_actions(self, responses):
        if "<tool_call>" in responses[0] or not hint(responses[0]):
            return super().execute_actions(responses)
        return ["error"], [{"role": "user", "content": hint(responses[0])}]


class GuessEnv(CityEnv):
    pass
""",
}


def call(city: str, name: str = "facts-lookup") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {{"city": "{city}"}}}}</tool_call>'


def episodes(script: list[str], classes: dict[str, Any], *, count: int = 1, **reward: Any) -> list[Episode]:
    context = make_build_context("rlfactory")
    box = ToolBox(
        [ToolEntry("rlfactory", RLFactoryToolset(EnvToolOptions(**classes), context), policy=PolicyOptions())]
    )
    rewards = [NamedReward("rlfactory", RLFactoryReward(EnvRewardOptions(**classes, **reward), context))]
    parser = RLFactoryParser(EnvParserOptions(**classes))
    place = Environment("default", parser, FakeChatFormat(), box, rewards, max_turns=5)

    async def run() -> list[Episode]:
        runner = Runner(ScriptedEngine(script), {"default": place}, concurrency=64)
        await box.start()
        try:
            limits = Limits(max_turn_tokens=500, max_episode_tokens=5000)
            groups = await runner.run([make_task(**TASK)], count, limits, round_id="train-1")
            return list(groups[0].episodes)
        finally:
            await box.stop()

    return asyncio.run(run())


def test_the_guides_env_and_manager() -> None:
    script = [f"I look. {call('Oslo')}", "<answer>717710</answer>"]
    (episode,) = episodes(script, CITY, step_rewards=True, factor=0.2)
    assert episode.failure is None
    assert episode.stop_reason == "answer"
    assert episode.calls[0].result.text == (
        "# Execute the tool facts-lookup successed\n  - The args are: {'city': 'Oslo'}\n  - The result is:\n717710"
    )
    tools = [message.content for message in episode.messages if message.role == "tool"]
    assert tools == [episode.calls[0].result.text]
    assert [(entry.turn, entry.value) for entry in episode.rewards] == [(None, 1.0), (0, 0.2)]
    assert episode.correct == 1.0


def test_what_goes_wrong_is_answered() -> None:
    script = [
        call("Oslo", "lookup") + call("Atlantis") + call("Oslo", "nothing") + "<tool_call>{",
        "I give up.",
    ]
    (episode,) = episodes(script, CITY)
    assert episode.failure is None
    texts = [message.content for message in episode.messages if message.role == "tool"]
    assert texts[0].startswith("# Execute the tool facts-lookup successed")
    assert texts[1].startswith(
        "# Execute the tool facts-lookup failed\n  - The original args are: {'city': 'Atlantis'}"
    )
    assert texts[2].startswith("# Failed to find the tool nothing in the tool map\n")
    assert texts[3] == "# Extract the tool name failed"
    assert [record.result.error for record in episode.calls] == [None, "tool_error", "unknown_tool", "malformed"]
    assert (episode.reward, episode.correct) == (0.0, 0.0)


def test_a_manager_from_the_base_up() -> None:
    classes = {"tool_manager": f"{GUIDE}:SquareManager"}
    toolset = RLFactoryToolset(EnvToolOptions(**classes), make_build_context("rlfactory"))
    script = ['[[lookup {"city": "Oslo"}]] [[lookup {"city": "Bergen"}]]', "<answer>717710</answer>"]
    (episode,) = episodes(script, classes)
    assert episode.failure is None
    assert [record.result.text for record in episode.calls] == ["717710", "291940"]
    assert toolset.env.tool_manager.seen == ["lookup", "lookup"]
    assert episode.reward == pytest.approx(1.05)


def test_many_episodes_at_once_share_one_env() -> None:
    found = episodes([call("Oslo"), call("Bergen"), "<answer>717710</answer>"], CITY, count=64)
    assert all(episode.failure is None and episode.reward == 1.0 for episode in found)
    assert all([record.result.text[-6:] for record in episode.calls] == ["717710", "291940"] for episode in found)


TOOLS = """
from toolrl_plugin_rlfactory.managers import QwenManager, ToolServiceError


class Tool:
    description = "Does something odd."
    parameters = {"type": "object", "properties": {}}

    def __init__(self, act):
        self.call = act


def leave(args):
    raise SystemExit(3)


def refuse(args):
    raise ToolServiceError(code="503", message="busy")


class Manager(QwenManager):
    def _build_tools(self):
        self.tool_map = {"leave": Tool(leave), "refuse": Tool(refuse), "data": Tool(lambda args: {"a": [1]})}
"""


def test_whatever_a_tool_does_is_answered(tmp_path: Path) -> None:
    (tmp_path / "odd_tools.py").write_text(TOOLS)
    calls = "".join(
        f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in ("leave", "refuse", "data")
    )
    (episode,) = episodes([calls, "Done."], {"tool_manager": f"{tmp_path}/odd_tools.py:Manager"})
    leave, refuse, data = (record.result for record in episode.calls)
    assert (leave.error, leave.text[-3:]) == ("tool_error", ":\n3")
    assert (refuse.error, "Error code: 503. Error message: busy" in refuse.text) == ("tool_error", True)
    assert (data.error, data.text.endswith('"a": [\n        1\n    ]\n}')) == (None, True)


@pytest.mark.parametrize("owner", ["step", "execute_actions"])
def test_an_own_step_answers_a_turn_without_a_call(tmp_path: Path, owner: str) -> None:
    (tmp_path / "guess.py").write_text(GUESSING[owner])
    classes = {"env": f"{tmp_path}/guess.py:GuessEnv", "tool_manager": f"{tmp_path}/guess.py:GuessManager"}
    (episode,) = episodes(["3", call("Oslo"), "5", "4"], classes)
    assert episode.failure is None
    assert [message.content for message in episode.messages if message.role == "user"][1:] == ["higher", "lower"]
    assert [record.result.error for record in episode.calls] == [None]
    assert (len(episode.turns), episode.stop_reason) == (4, "final")
