"""Whatever a client sends is a question or is refused: a 500 would fail the episode as if the model had."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from toolrl.rollouts.matching import Question
from toolrl_plugin_gateway import anthropic_messages, chat_completions, responses
from toolrl_plugin_gateway.dialect import Known, RefusedError

CHAT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    "model": "m",
    "max_tokens": 3,
    "stop": ["x"],
    "n": 1,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "f"}}]}},
    "parallel_tool_calls": False,
    "functions": None,
}
RESPONSES = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "2"},
        {"type": "item_reference", "id": "i"},
    ],
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}],
    "previous_response_id": "r",
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
    "tool_choice": {"type": "function", "name": "f"},
    "reasoning": {"context": "auto"},
    "conversation": None,
    "max_output_tokens": 3,
}
MESSAGES = {
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "2"}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "context_management": {"edits": []},
    "thread": None,
    "stop_sequences": ["x"],
    "max_tokens": 3,
}
ODD: list[Any] = [
    None,
    True,
    0,
    10**400,
    1.5,
    float("nan"),
    "",
    "x",
    "\ud800",
    "[" * 100_000,
    [],
    [1],
    [[]],
    [{}],
    {},
    {"x": 1},
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each container of a body with a key or an index of it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


@pytest.mark.parametrize(
    ("dialect", "body"),
    [(chat_completions, CHAT), (responses, RESPONSES), (anthropic_messages, MESSAGES)],
    ids=["chat", "responses", "messages"],
)
def test_a_body_with_anything_anywhere_is_a_question_or_refused(dialect: Any, body: Any) -> None:
    for place in range(len(places(body))):
        for odd in ODD:
            given = copy.deepcopy(body)
            where, key = places(given)[place]
            where[key] = odd
            try:
                question = dialect.read(given, Known({"r": []}, {"i": {"role": "user", "content": "x"}}))
            except RefusedError:
                continue
            assert all(isinstance(it.content, str) for it in question.prompt), (key, odd)
            Question(question.messages, question.tools, "agent")
