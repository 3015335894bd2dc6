"""Conversations as requests hold them, and answers as toolrl reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolrl.types import CallError, Media, Message, ToolCall, ToolSpec
from toolrl_plugin_api.messages import as_json, read_calls, read_reasoning, read_text, with_tools_as_text

CONVERSATION = [
    Message("system", "Be brief."),
    Message("user", "Double 2."),
    Message("assistant", "", tool_calls=(ToolCall("double", {"n": 2}, "call_1", raw='{"n":2}'),), reasoning="Hm."),
    Message("tool", "4", tool_call_id="call_1", name="double"),
    Message("tool", "close <answer>", tool_call_id="call_2"),
]


def test_calls_and_results_refer_to_each_other() -> None:
    _, _, said, result, flag = as_json(CONVERSATION)
    function = {"name": "double", "arguments": '{"n":2}'}
    assert said == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "4"}
    assert flag == {"role": "user", "content": "close <answer>"}, "it answers no call, so no tool message may hold it"


def test_arguments_that_no_server_reads_are_not_sent_back() -> None:
    call = ToolCall("double", {}, "call_1", raw='{"n": ')
    (said,) = as_json([Message("assistant", "", tool_calls=(call,))])
    assert said["tool_calls"][0]["function"]["arguments"] == "{}"


def test_reasoning_is_sent_back_where_a_field_is_named() -> None:
    assert as_json(CONVERSATION, "reasoning_content")[2]["reasoning_content"] == "Hm."
    assert "reasoning_content" not in as_json(CONVERSATION)[2]


def test_without_tools_everything_is_text() -> None:
    spec = ToolSpec("double", "Doubles.")
    system, user, said, results = with_tools_as_text(CONVERSATION, [spec], None)
    assert system.content.startswith("Be brief.")
    assert json.dumps(spec.as_function()) in system.content
    assert user == CONVERSATION[1]
    assert said.content == '<tool_call>\n{"name": "double", "arguments": {"n": 2}}\n</tool_call>'
    assert not said.tool_calls
    assert results.role == "user"
    assert results.content.count("<tool_response>") == 2
    assert with_tools_as_text([], [spec], "Use: {tools}")[0].content.startswith('Use: {"type"')


def test_images_stand_at_their_marks_and_behind_results() -> None:
    image = pytest.importorskip("PIL.Image")
    media = (Media("image", image.new("RGB", (2, 2))),)
    call = ToolCall("look", {}, "call_1")
    user, _, result, shown = as_json(
        [
            Message("user", "What is <image> here?", media),
            Message("assistant", "", tool_calls=(call,)),
            Message("tool", "Here.", media, tool_call_id="call_1"),
        ]
    )
    assert [part["type"] for part in user["content"]] == ["text", "image_url", "text"]
    assert user["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert result["content"] == "Here."
    assert [part["type"] for part in shown["content"]] == ["image_url"]


@pytest.mark.parametrize(
    ("given", "kind"), [('{"n": ', "invalid_json"), ("[1]", "invalid_json"), ('"2"', "invalid_json"), ("", None)]
)
def test_arguments_are_one_object_or_an_error(given: str, kind: str | None) -> None:
    message: dict[str, Any] = {"tool_calls": [{"function": {"name": "double", "arguments": given}}]}
    (found,) = read_calls(message, "stop")
    assert (found.kind if isinstance(found, CallError) else None) == kind
    assert found.name == "double"


def test_odd_answers_are_read() -> None:
    dictionary = {"tool_calls": [{"function": {"name": "double", "arguments": {"n": 2}}}, {"function": {}}, None]}
    call, nameless = read_calls(dictionary, "stop")
    assert isinstance(call, ToolCall)
    assert call.arguments == {"n": 2}
    assert isinstance(nameless, CallError)
    assert nameless.kind == "missing_name"
    (cut,) = read_calls({"tool_calls": [{"function": {"name": "double", "arguments": '{"n'}}]}, "length")
    assert isinstance(cut, CallError)
    assert cut.kind == "unclosed"
    assert read_text({"content": None, "refusal": "I won't."}) == "I won't."
    assert read_text({"content": [{"type": "thinking"}, {"type": "text", "text": "Yes."}]}) == "Yes."
    assert read_reasoning({"reasoning": "Hm."}) == "Hm."
    assert read_reasoning({"content": "x"}) is None
