"""A turn with one bad call between two good ones: both good ones run, all three are answered, in order.

The parser `hermes`, the calculator, the policy around it and the episode are the real ones; what the model says is
scripted. The answers are looked for where the model reads them: in the prompt of its next turn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from toolrl.building import build_component
from toolrl.config.frame import ComponentUse
from toolrl.plugins.registry import load_registry
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import CallError, Episode
from toolrl_testing.fakes import FakeChatFormat, ScriptedEngine, make_build_context, make_task


def wrapped(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def call(expression: str) -> str:
    return wrapped(json.dumps({"name": "calculator", "arguments": {"expression": expression}}))


def play(*script: str) -> tuple[Episode, ScriptedEngine]:
    """One episode in which the model says these turns."""
    registry, context = load_registry(), make_build_context()
    calculator = build_component(registry, "tools", ComponentUse(use="calculator"), context, "tools")
    parser = build_component(registry, "parsers", ComponentUse(use="hermes"), context, "parser")
    engine = ScriptedEngine(script)

    async def main() -> Episode:
        tools = ToolBox([ToolEntry("calculator", calculator)])
        await tools.start()
        try:
            environment = Environment("default", parser, FakeChatFormat(), tools)
            runner = Runner(engine, {"default": environment})
            (group,) = await runner.run([make_task()], 1, Limits(2000, 20_000), round_id="test")
            return group.episodes[0]
        finally:
            await tools.stop()

    return asyncio.run(main()), engine


FORM = wrapped('{"name": "calculator", "arguments": {"ARGUMENT": VALUE}}')
UNNAMED = FORM.replace("calculator", "TOOL")
BAD: Mapping[str, tuple[str, str, str]] = {
    "broken": (wrapped('{"name": "calculator", "arguments": {"expression": }}'), "invalid_json", UNNAMED),
    "no closing tag": (call("1").removesuffix("</tool_call>"), "unclosed", FORM),
    "string left open": (call("1").replace('"}}', "}}"), "invalid_json", UNNAMED),
    "no arguments": (wrapped('{"name": "calculator"}'), "missing_arguments", FORM),
    "arguments are a list": (wrapped('{"name": "calculator", "arguments": [1]}'), "bad_arguments", FORM),
    "a list": (wrapped("[1, 2]"), "not_object", UNNAMED),
    "empty": (wrapped(""), "empty", UNNAMED),
    "no opening tag": ("</tool_call>", "stray_close", UNNAMED),
}


@pytest.mark.parametrize("name", BAD)
def test_both_good_calls_run_and_all_three_are_answered_in_order(name: str) -> None:
    bad, kind, form = BAD[name]
    episode, engine = play(f"First {call('2 + 3')}\n{bad}\n{call('4 * 5')}", "Done.")
    assert (episode.failure, episode.stop_reason) == (None, "final")

    wrong = episode.turns[0].items[1]
    assert isinstance(wrong, CallError)
    assert wrong.kind == kind
    assert [record.result.error for record in episode.calls] == [None, "malformed", None]

    assert [message.role for message in episode.messages] == ["user", "assistant", "tool", "tool", "tool", "assistant"]
    answers = episode.messages[2:5]
    assert [message.tool_call_id for message in answers] == ["call_1", "call_2", "call_3"]
    assert (answers[0].content, answers[2].content) == ("5", "20")
    assert form in answers[1].content, "the error shows how the call is written"

    # What the model reads before its next turn, in this order.
    told = FakeChatFormat().decode(engine.generated[1].prompt).text
    at = [told.index(f"<|tool|>{message.content}<|end|>") for message in answers]
    assert at == sorted(at)
    assert at[0] > told.index(bad)
