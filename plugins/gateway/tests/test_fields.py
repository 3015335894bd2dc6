"""What a body may have besides its messages: honoured, refused, or named in the log."""

from __future__ import annotations

import importlib
import logging
from typing import Any, get_type_hints

import pytest

from toolrl_plugin_gateway import anthropic_messages, chat_completions, responses
from toolrl_plugin_gateway.dialect import Known, RefusedError

USER = {"role": "user", "content": "Hello"}
BODIES: dict[Any, dict[str, Any]] = {
    chat_completions: {"model": "m", "messages": [USER]},
    responses: {"model": "m", "input": [USER]},
    anthropic_messages: {"model": "m", "max_tokens": 9, "messages": [USER]},
}
EXTENSIONS = [
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"enable_thinking": False},
    {"guided_json": {"type": "object"}},
    {"structured_outputs": {"regex": "a+"}},
    {"truncate_prompt_tokens": 100},
    {"continue_final_message": True},
    {"transforms": ["middle-out"]},
]
CHANGING = [
    (chat_completions, {"functions": [{"name": "f", "parameters": {}}]}),
    (chat_completions, {"function_call": "none"}),
    (chat_completions, {"logit_bias": {"50256": -100}}),
    (chat_completions, {"modalities": ["text", "audio"]}),
    (chat_completions, {"web_search_options": {}}),
    (chat_completions, {"tool_choice": {"type": "custom", "custom": {"name": "f"}}}),
    *[(chat_completions, extension) for extension in EXTENSIONS],
    (responses, {"conversation": "conv_1"}),
    (responses, {"conversation": {"id": "conv_1"}}),
    (responses, {"background": True}),
    (responses, {"prompt": {"id": "pmpt_1"}}),
    (responses, {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}),
    (responses, {"tool_choice": {"type": "file_search"}}),
    (responses, {"reasoning": {"context": "current_turn"}}),
    (responses, {"tools": [{"type": "function", "name": "f", "defer_loading": True}]}),
    (anthropic_messages, {"output_config": {"task_budget": {"type": "tokens", "total": 9}}}),
    (anthropic_messages, {"tools": [{"name": "f", "allowed_callers": ["code_execution_20250825"]}]}),
    (anthropic_messages, {"thread": {"type": "create"}}),
    (anthropic_messages, {"thread": {"type": "continue", "previous_message_id": "msg_1"}}),
    (anthropic_messages, {"container": "c_1"}),
    (anthropic_messages, {"compaction": {"type": "summarize"}}),
    (anthropic_messages, {"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}),
    (anthropic_messages, {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
]


@pytest.mark.parametrize(("dialect", "more"), CHANGING)
def test_a_field_that_changes_what_the_model_sees_or_may_do_is_refused(dialect: Any, more: dict[str, Any]) -> None:
    (name,) = more
    with pytest.raises(RefusedError, match=name) as caught:
        dialect.read({**BODIES[dialect], **more}, Known())
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("dialect", "more"),
    [
        (chat_completions, {"functions": None, "modalities": ["text"], "logit_bias": {}, "function_call": None}),
        (chat_completions, {"add_generation_prompt": True, "chat_template_kwargs": {}, "guided_json": None}),
        (responses, {"background": False, "conversation": None, "context_management": [], "prompt": None}),
        (anthropic_messages, {"thread": None, "container": None, "mcp_servers": []}),
        (
            anthropic_messages,  # Claude Code's: nothing is cleared.
            {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        ),
    ],
)
def test_a_field_that_asks_for_nothing_is_fine(dialect: Any, more: dict[str, Any]) -> None:
    assert dialect.read({**BODIES[dialect], **more}, Known()).messages


@pytest.mark.parametrize(
    ("dialect", "messages"),
    [
        (chat_completions, [{"role": "tool", "tool_call_id": "1", "content": "42"}]),
        (responses, [{"type": "function_call_output", "call_id": "1", "output": "42"}]),
        (
            anthropic_messages,
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "42"}]}],
        ),
    ],
)
async def test_a_tool_result_without_its_history_is_refused(rig: Any, dialect: Any, messages: Any) -> None:
    """By whatever field its client says where the history is."""
    model = rig.model(["42"])
    async with rig.playing(model) as (_, session):
        body = {**BODIES[dialect], "elsewhere": "x"}
        with pytest.raises(RefusedError, match="send the whole history"):
            await session.ask(dialect, {**body, ("input" if dialect is responses else "messages"): messages})
    assert not model.asked


@pytest.mark.parametrize(
    ("dialect", "messages", "problem"),
    [
        (chat_completions, [USER, {"role": "assistant", "function_call": {"name": "f"}}, USER], "function_call"),
        (chat_completions, [USER, {"role": "assistant", "content": "So", "prefix": True}], "prefix"),
        (anthropic_messages, [USER, {"role": "assistant", "content": "So"}], "prefilled"),
    ],
)
async def test_a_message_that_would_be_shown_otherwise_is_refused(
    rig: Any, dialect: Any, messages: Any, problem: str
) -> None:
    async with rig.playing(rig.model([])) as (_, session):
        with pytest.raises(RefusedError, match=problem):
            await session.ask(dialect, {**BODIES[dialect], "messages": messages})


def test_examples_of_a_tools_input_are_part_of_its_description() -> None:
    tool = {"name": "f", "description": "Adds.", "input_schema": {}, "input_examples": [{"a": 1}]}
    (spec,) = anthropic_messages.read({**BODIES[anthropic_messages], "tools": [tool]}, Known()).tools
    assert spec.description.startswith("Adds.")
    assert '{"a": 1}' in spec.description


async def test_the_log_is_not_filled_by_names_of_fields(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the model runs may send them."""
    async with rig.playing(rig.model(["one"] * 300)) as (_, session):
        for number in range(300):
            await session.ask(chat_completions, {**BODIES[chat_completions], f"x\n{number}": 1})
    assert len(caplog.records) < 150
    assert not any("\n" in it.getMessage() for it in caplog.records)


async def test_ignored_and_unknown_fields_are_named_once(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    more = {"temperature": 0, "seed": 1, "elsewhere": "x", "response_format": {"type": "json_object"}}
    async with rig.listening() as gateway:
        for _ in range(2):
            async with rig.session(gateway, rig.model(["one", "two"])) as session:
                await session.ask(chat_completions, {**BODIES[chat_completions], **more})
                await session.ask(chat_completions, {**BODIES[chat_completions], **more})
    said = [it for it in caplog.messages if "chat_completions" in it]
    assert len(said) == 3
    assert all(name in "".join(said) for name in ("temperature", "seed", "elsewhere", "response_format"))
    warned = [it.getMessage() for it in caplog.records if it.levelno == logging.WARNING]
    assert ["elsewhere" in it for it in warned] == [True, False]


@pytest.mark.parametrize(
    ("dialect", "module"),
    [
        (chat_completions, "openai.types.chat.completion_create_params:CompletionCreateParamsBase"),
        (responses, "openai.types.responses.response_create_params:ResponseCreateParamsBase"),
        (anthropic_messages, "anthropic.types.message_create_params:MessageCreateParamsBase"),
        (anthropic_messages, "anthropic.types.beta.message_create_params:MessageCreateParamsBase"),
    ],
)
def test_each_field_of_the_sdk_is_listed(dialect: Any, module: str) -> None:
    """Also of the newest, in `nox -s harnesses`: a new one is honoured, refused or ignored on purpose."""
    name, _, kind = module.partition(":")
    pytest.importorskip(name.partition(".")[0])
    fields = dialect.FIELDS
    given = set(get_type_hints(getattr(importlib.import_module(name), kind))) | {"stream"}
    assert not given - fields.read - fields.ignored - fields.refused.keys()
