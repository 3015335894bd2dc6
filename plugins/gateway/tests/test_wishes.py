"""Formats and tool choices: the model is told, and the episode goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolrl.types import Message
from toolrl_plugin_gateway import anthropic_messages, chat_completions, responses
from toolrl_plugin_gateway.dialect import Known, RefusedError
from toolrl_plugin_gateway.options import PythonOptions
from toolrl_plugin_gateway.python_harness import PythonHarness
from toolrl_testing.fakes import ScriptedEngine, make_build_context

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 * 7?"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
CHAT_TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
FLAT_TOOLS = [{"type": "function", "name": name} for name in ("f", "g")]
ANTHROPIC_TOOLS = [{"name": name, "input_schema": {}} for name in ("f", "g")]


def chat(**more: Any) -> Any:
    return chat_completions.read({"messages": [SYSTEM, USER], "tools": CHAT_TOOLS, **more}, Known())


def response(**more: Any) -> Any:
    return responses.read({"instructions": "Be brief.", "input": "6 * 7?", "tools": FLAT_TOOLS, **more}, Known())


def message(**more: Any) -> Any:
    body = {"system": "Be brief.", "messages": [USER], "tools": ANTHROPIC_TOOLS, **more}
    return anthropic_messages.read(body, Known())


@pytest.mark.parametrize(
    "question",
    [
        chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}),
        response(text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}),
        message(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}),
        message(output_format={"type": "json_schema", "schema": SCHEMA}),
    ],
)
def test_a_schema_is_told_to_the_model(question: Any) -> None:
    first, *rest = question.prompt
    assert first.content.startswith("Be brief.\n\n")
    assert '{"x": {"type": "integer"}}' in first.content
    assert rest == [Message("user", "6 * 7?")]
    assert question.messages[0].content == "Be brief."


@pytest.mark.parametrize(
    "question",
    [
        chat(response_format={"type": "json_object"}),
        chat(response_format={"type": "json_schema", "json_schema": {"name": "x"}}),
        response(text={"format": {"type": "json_object"}}),
    ],
)
def test_json_is_told_to_the_model(question: Any) -> None:
    assert "JSON object" in question.prompt[0].content


@pytest.mark.parametrize(
    ("question", "offered", "told", "allows"),
    [
        (chat(tool_choice="auto"), "fg", "", True),
        (chat(tool_choice="required"), "fg", "Call a tool", True),
        (chat(tool_choice={"type": "function", "function": {"name": "g"}}), "fg", "Call the tool g", True),
        (chat(tool_choice="none"), "", "", False),
        (chat(parallel_tool_calls=False), "fg", "Call at most one", True),
        (
            chat(tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": CHAT_TOOLS[:1]}}),
            "f",
            "",
            True,
        ),
        (response(tool_choice="required"), "fg", "Call a tool", True),
        (response(tool_choice={"type": "function", "name": "g"}), "fg", "Call the tool g", True),
        (
            response(tool_choice={"type": "allowed_tools", "mode": "required", "tools": FLAT_TOOLS[1:]}),
            "g",
            "Call a tool",
            True,
        ),
        (message(tool_choice={"type": "any"}), "fg", "Call a tool", True),
        (message(tool_choice={"type": "tool", "name": "f"}), "fg", "Call the tool f", True),
        (message(tool_choice={"type": "none"}), "", "", False),
        (message(tool_choice={"type": "auto", "disable_parallel_tool_use": True}), "fg", "Call at most one", True),
    ],
)
def test_a_choice_of_tools_is_offered_and_told(question: Any, offered: str, told: str, allows: bool) -> None:
    assert "".join(tool.name for tool in question.tools) == offered
    assert question.prompt[0].content.removeprefix("Be brief.").strip().startswith(told)
    assert bool(question.hints) == bool(told)
    assert question.allows_calls == allows


@pytest.mark.parametrize(
    "more",
    [
        {"tool_choice": "required", "tools": []},
        {"tool_choice": "any"},
        {"tool_choice": {"type": "function", "function": {"name": "h"}}},
        {"response_format": {"type": "grammar", "grammar": "x"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
    ],
)
def test_what_cannot_be_told_is_refused(more: Any) -> None:
    with pytest.raises(RefusedError, match=r"tool_choice|response_format"):
        chat(**more)


def test_without_a_system_message_the_user_message_has_it() -> None:
    question = chat(messages=[USER], response_format={"type": "json_object"})
    assert [it.role for it in question.prompt] == ["user"]
    assert question.prompt[0].content.startswith("6 * 7?\n\nAnswer with")


async def test_calls_that_are_not_allowed_are_text(rig: Any) -> None:
    call = rig.call(1, "f")
    model = rig.model([["So:", type(call)("f", {}, id="1", raw="<call>{}</call>")]])
    async with rig.playing(model) as (_, session):
        body = {"messages": [USER], "tools": CHAT_TOOLS, "tool_choice": "none"}
        answer = await session.ask(chat_completions, body)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "So:\n<call>{}</call>"}
    assert answer["choices"][0]["finish_reason"] == "stop"


AGENT = """
import json
from openai import AsyncOpenAI

TOOLS = [{"type": "function", "name": "double", "parameters": {"type": "object"}}]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}

async def chat(episode):
    async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key) as api:
        messages = episode.messages
        tools = [{"type": "function", "function": TOOLS[0]}]
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        for _ in range(3):
            answer = await api.chat.completions.create(
                model="agent", messages=messages, tools=tools, response_format=form, tool_choice="required"
            )
            message = answer.choices[0].message
            messages.append(message)
            calls = message.tool_calls or []
            messages += [{"role": "tool", "tool_call_id": it.id, "content": "4"} for it in calls]
            if not calls:
                try:
                    return str(json.loads(message.content)["x"])
                except ValueError:
                    messages.append({"role": "user", "content": "That is no JSON."})
        return "none"

async def responses(episode):
    async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key) as api:
        form = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
        given, before = episode.messages, None
        for _ in range(3):
            answer = await api.responses.create(
                model="agent", input=given, tools=TOOLS, text=form, previous_response_id=before, instructions="Think."
            )
            calls = [it for it in answer.output if it.type == "function_call"]
            given = [{"type": "function_call_output", "call_id": it.call_id, "output": "4"} for it in calls]
            before = answer.id
            if not calls:
                try:
                    return str(json.loads(answer.output_text)["x"])
                except ValueError:
                    given = [{"role": "user", "content": "That is no JSON."}]
        return "none"
"""


@pytest.mark.parametrize("function", ["chat", "responses"])
async def test_an_episode_with_a_format_is_one_trajectory(rig: Any, tmp_path: Path, function: str) -> None:
    """Also with an answer in another format, which training should punish."""
    pytest.importorskip("openai")
    (tmp_path / "agent.py").write_text(AGENT)
    harness = PythonHarness(PythonOptions(target=f"{tmp_path}/agent.py:{function}"), make_build_context("python"))
    script = ['<call>{"x": 2}</call>', "It is 4.", '{"x": 4}']
    (episode,) = await rig.episodes(harness, ScriptedEngine(script))
    assert (episode.failure, episode.answer, episode.stop_reason) == (None, "4", "final")
    assert (len(episode.turns), len(episode.trajectories)) == (3, 1)
    assert '"integer"' in episode.main.messages[0].content
