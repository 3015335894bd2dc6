"""Messages as the anthropic SDK reads them."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.errors import ContextFullError, EngineError
from toolrl.types import Message

anthropic = pytest.importorskip("anthropic")
ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
HELLO = [{"role": "user", "content": "Hello"}]


def client(gateway: Any, session: Any, path: str = "") -> Any:
    return anthropic.AsyncAnthropic(base_url=gateway.url + path, api_key=session.key)


@pytest.mark.parametrize("streamed", [False, True])
async def test_thinking_text_and_calls_go_out_and_come_back(rig: Any, streamed: bool) -> None:
    model = rig.model([["Let me see.", rig.call(1, a=1), rig.call(2, a=2)], "3"], reasoning="hm")
    asked: Any = {
        "model": "m",
        "max_tokens": 2048,
        "system": [{"type": "text", "text": "Add."}],
        "tools": [ADD],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    async with rig.playing(model) as (gateway, session), client(gateway, session) as api:
        if streamed:
            async with api.messages.stream(**asked, messages=HELLO) as stream:
                first = await stream.get_final_message()
        else:
            first = await api.messages.create(**asked, messages=HELLO)
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": it.id, "content": str(it.input["a"])}
            for it in first.content
            if it.type == "tool_use"
        ]
        results.append({"type": "text", "text": "Go on."})
        history = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        second = await api.messages.create(**asked, messages=history)

    assert [it.type for it in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (first.stop_reason, second.stop_reason, second.content[1].text) == ("tool_use", "end_turn", "3")
    assert first.usage.output_tokens == 4
    assert model.asked[0][2]["max_tokens"] == 2048
    assert model.asked[1][0] == [
        Message("system", "Add."),
        Message("user", "Hello"),
        Message("assistant", "Let me see.", (), (rig.call(1, a=1), rig.call(2, a=2)), reasoning="hm"),
        Message("tool", "1", tool_call_id="call_1", name="add"),
        Message("tool", "2", tool_call_id="call_2", name="add"),
        Message("user", "Go on."),
    ]


async def test_stop_sequences_and_a_base_url_that_ends_in_v1(rig: Any) -> None:
    model = rig.model(["one END", "cut"])
    async with rig.playing(model) as (gateway, session), client(gateway, session, "/v1") as api:
        first = await api.messages.create(model="m", max_tokens=9, messages=HELLO, stop_sequences=["END"])
        model.finish = "length"
        second = await api.messages.create(model="m", max_tokens=9, messages=HELLO)

    assert (first.content[0].text, first.stop_reason, first.stop_sequence) == ("one ", "stop_sequence", "END")
    assert second.stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("error", "status", "problem"),
    [(ContextFullError("the prompt has 99 tokens"), 400, "prompt is too long"), (EngineError("broken"), 500, "broken")],
)
async def test_errors_have_the_form_of_the_api(rig: Any, error: Any, status: int, problem: str) -> None:
    model = rig.model([error] * 9)
    async with rig.playing(model) as (gateway, session), client(gateway, session) as api:
        with pytest.raises(anthropic.APIStatusError, match=problem) as caught:
            await api.messages.create(model="m", max_tokens=9, messages=HELLO)
        with pytest.raises(anthropic.BadRequestError, match="function tools"):
            await api.messages.create(
                model="m", max_tokens=9, messages=HELLO, tools=[{"type": "web_search_20250305", "name": "web_search"}]
            )
    assert caught.value.status_code == status
    assert caught.value.body["type"] == "error"
    assert len(model.asked) == 1


async def test_the_tool_runner_sends_whole_histories(rig: Any) -> None:
    """By default it has the server keep them, in a thread."""
    model = rig.model([[rig.call(1, a=1)], [rig.call(2, a=2)], "3"])

    @anthropic.beta_async_tool
    async def add(a: int) -> str:
        """Adds."""
        return str(a)

    async with rig.playing(model) as (gateway, session), client(gateway, session) as api:
        runner = api.beta.messages.tool_runner(model="m", max_tokens=9, system="Add.", tools=[add], messages=HELLO)
        last = await runner.until_done()

    assert last.content[0].text == "3"
    assert [[it.role for it in messages] for messages, _, _ in model.asked] == [
        ["system", "user"],
        ["system", "user", "assistant", "tool"],
        ["system", "user", "assistant", "tool", "assistant", "tool"],
    ]
    assert all(tools for _, tools, _ in model.asked)


async def test_a_thread_is_refused_in_the_form_that_the_sdk_knows(rig: Any) -> None:
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    async with rig.playing(rig.model([])) as (gateway, session), client(gateway, session) as api:
        with pytest.raises(anthropic.BadRequestError, match="thread") as caught:
            await api.messages.create(model="m", max_tokens=9, messages=HELLO, extra_body={"thread": thread})
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert caught.value.body["error"]["details"] == details


async def test_tokens_are_counted_and_models_listed(rig: Any) -> None:
    async with rig.playing(rig.model([]), judge="critic") as (gateway, session), client(gateway, session) as api:
        counted = await api.messages.count_tokens(model="m", messages=HELLO, system="Add.", tools=[ADD])
        models = [it.id async for it in await api.models.list()]
        one = await api.models.retrieve("agent")
    assert counted.input_tokens == 201
    assert (models, one.id, one.type) == (["agent", "judge"], "agent", "model")
