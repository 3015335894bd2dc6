"""Environments of verifiers, played by toolrl: the same transcripts and rewards as verifiers' own rollout gives."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import types
from typing import Any

import pytest
import verifiers as vf
import vf_games
from openai.types.chat import ChatCompletion

from toolrl.errors import ConfigError, DataError
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox
from toolrl.types import Episode
from toolrl_plugin_gateway.chat_completions import write_message
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_verifiers.dataset import Examples
from toolrl_plugin_verifiers.harness import VerifiersHarness
from toolrl_plugin_verifiers.options import DataOptions
from toolrl_testing import FakeChatFormat, ScriptedEngine, make_build_context, make_task

CONTEXT = make_build_context("verifiers")


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def examples(**args: Any) -> Examples:
    return Examples(DataOptions(id="vf-games", args=args), CONTEXT)


def play(
    script: list[str], task: Any = None, *, max_turns: int = 8, limits: Limits | None = None, **args: Any
) -> Episode:
    """An episode in which the model says these texts."""
    environment = Environment(
        "default", HermesParser(), FakeChatFormat(), ToolBox([]), harness=VerifiersHarness(None, CONTEXT),
        max_turns=max_turns,
    )  # fmt: skip
    runner = Runner(ScriptedEngine(script), {"default": environment}, max_error_rate=1.0)
    task = task or examples(**args)[1]
    (group,) = asyncio.run(runner.run([task], 1, limits or Limits(2000, 20000), round_id="test"))
    return group.episodes[0]


class Said(vf.OpenAIChatCompletionsClient):
    """A client of verifiers' that says what an episode's model said."""

    def __init__(self, episode: Episode) -> None:
        super().__init__(None)
        self._messages = [write_message(it) for it in episode.messages if it.role == "assistant"]
        self.prompts: list[Any] = []

    async def get_native_response(self, prompt: Any, *rest: Any, **more: Any) -> ChatCompletion:
        message = self._messages[len(self.prompts)]
        self.prompts.append(prompt)
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
        return ChatCompletion.model_validate({**head, "choices": [choice]})


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        ("question", ["It is 4."]),
        ("question", ["It is 5."]),
        ("tool", [call("calculator", expression="2 + 2"), "It is 4."]),
        (
            "tool",
            [
                "Let me see." + call("calculator", expression="2 + 2") + call("calculator", expression="x"),
                call("calculator", x=1),
                "So, 4.",
            ],
        ),
        ("tool", [call("calculator", expression="2 + 2")] * 4),
        ("state", [call("put", thing="pear"), call("put", thing="nut"), "Done, 4."]),
        ("state", [call("put", thing="pear") + call("nothing"), "4"]),
        ("game", ["9", "1", "4"]),
        ("game", ["<think>Hm.</think>\n9", "what?", " 1 ", "2"]),
    ],
)
def test_an_episode_has_verifiers_own_transcript_and_reward(kind: str, script: list[str]) -> None:
    episode = play(script, kind=kind)
    assert episode.failure is None
    (trajectory,) = episode.trajectories
    assert len(trajectory.turns) == len(script)
    assert [turn.text for turn in episode.turns] == script

    environment, row = vf_games.load_environment(kind), episode.task.extra["verifiers"]["row"]
    said = Said(episode)
    output = asyncio.run(environment.run_rollout(dict(row), said, "m", {}))
    assert episode.reward == pytest.approx(output["reward"], abs=0)
    metrics = {name.removeprefix("harness/"): value for name, value in episode.metrics.items()}
    assert {name: metrics[name] for name in output["metrics"]} == output["metrics"]
    assert episode.correct == float(output["reward"] >= 0.5)
    # The model read what verifiers shows, word for word.
    shown = [(it["role"], it.get("content") or "") for it in said.prompts[-1]]
    read = [(it.role, it.content) for it in episode.messages][: len(shown)]
    assert [(role, text.strip()) for role, text in read] == [(role, text.strip()) for role, text in shown]


def test_stops() -> None:
    assert play(["4"]).stop_reason == "final"
    assert play(["9", "4"], kind="game").stop_reason == "tool_done"
    assert play(["9"] * 4, kind="game").stop_reason == "max_turns"
    ours = play(["9"] * 2, kind="game", max_turns=2)
    assert (ours.stop_reason, ours.failure, ours.metrics["harness/num_turns"]) == ("max_turns", None, 2)
    two_turns = len(play(["9", "4"], kind="game").ids)
    full = play(["9"] * 4, kind="game", limits=Limits(200, two_turns))
    assert (full.stop_reason, full.failure) == ("context_full", None)
    assert full.metrics["harness/num_turns"] == 2
    assert play(["long " * 40], limits=Limits(20, 2000)).stop_reason == "max_tokens"


def test_rows_are_tasks() -> None:
    source = Examples(DataOptions(id="vf-games", skip=1, limit=2, environment="sums"), CONTEXT)
    assert len(source) == 2
    task = source[0]
    assert [(it.role, it.content) for it in task.messages] == [
        ("system", "Answer shortly."),
        ("user", "What is 2 + 2?"),
    ]
    assert (task.answer, task.environment, task.id) == ("4", "sums", "vf-games-train-1")
    with pytest.raises(DataError, match="no eval split"):
        Examples(DataOptions(id="vf-games", split="eval"), CONTEXT)
    with pytest.raises(DataError, match="none is left"):
        Examples(DataOptions(id="vf-games", skip=4), CONTEXT)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"id": "vf-nowhere"}, "'vf-nowhere' can't be loaded"),
        ({"id": "vf-games", "args": {"size": "many"}}, "can't be loaded: TypeError"),
        ({"id": "vf-games", "args": {"key": "VF_GAMES_KEY"}}, "Missing required environment variable.*VF_GAMES_KEY"),
        ({"id": "vf-games", "args": {"group": True}}, "compares the rollouts of a group"),
    ],
)
def test_environments_that_cant_be_used(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Examples(DataOptions(**options), CONTEXT)


def test_loading_leaves_signals_alone() -> None:
    before = [signal.getsignal(it) for it in (signal.SIGINT, signal.SIGTERM)]
    examples(size=7)
    assert [signal.getsignal(it) for it in (signal.SIGINT, signal.SIGTERM)] == before


def test_what_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = play(["4"], make_task())
    assert foreign.failure is not None
    assert "data set `verifiers`" in foreign.failure.message

    class Broken(vf.SingleTurnEnv):
        async def setup_state(self, state: vf.State) -> vf.State:
            raise vf.SandboxError("no sandbox answers")

    module = types.ModuleType("vf_broken")
    rows = vf_games.load_environment().get_dataset()
    module.load_environment = lambda: Broken(dataset=rows, rubric=vf.Rubric(funcs=[vf_games.right]))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vf_broken", module)
    failed = play(["4"], Examples(DataOptions(id="vf-broken"), CONTEXT)[0]).failure
    assert failed is not None
    assert failed.fault == "harness"
    assert "'vf-broken' failed: SandboxError('no sandbox answers')" in failed.message
