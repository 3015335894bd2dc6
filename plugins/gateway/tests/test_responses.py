"""Responses as the openai SDK reads them."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.types import Message

openai = pytest.importorskip("openai")
ADD = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}


def client(gateway: Any, session: Any) -> Any:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=session.key)


@pytest.mark.parametrize("kept", ["whole", "by_id", "by_items"])
async def test_a_conversation_is_sent_again_or_continued_by_ids(rig: Any, kept: str) -> None:
    """AI SDK names output items by their ids."""
    model = rig.model([["Let me see.", rig.call(1, a=1), rig.call(2, a=2)], "3"], reasoning="hm")
    asked: Any = {"model": "m", "instructions": "Add.", "tools": [ADD]}
    async with rig.playing(model) as (gateway, session), client(gateway, session) as api:
        first = await api.responses.create(**asked, input="1 + 2?", max_output_tokens=9, temperature=0)
        answers: list[Any] = [
            {"type": "function_call_output", "call_id": it.call_id, "output": it.arguments}
            for it in first.output
            if it.type == "function_call"
        ]
        if kept == "by_id":
            second = await api.responses.create(**asked, input=answers, previous_response_id=first.id)
        else:
            by_id = [{"type": "item_reference", "id": it.id} for it in first.output]
            output = by_id if kept == "by_items" else [it.model_dump() for it in first.output]
            history = [{"role": "user", "content": "1 + 2?"}, *output, *answers]
            second = await api.responses.create(**asked, input=history)

    assert [it.type for it in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert (second.output_text, second.status) == ("3", "completed")
    assert model.asked[0][2] == {"role": "agent", "max_tokens": 9, "stop": ()}
    assert model.asked[1][0] == [
        Message("system", "Add."),
        Message("user", "1 + 2?"),
        Message("assistant", "Let me see.", (), (rig.call(1, a=1), rig.call(2, a=2)), reasoning="hm"),
        Message("tool", '{"a": 1}', tool_call_id="call_1", name="add"),
        Message("tool", '{"a": 2}', tool_call_id="call_2", name="add"),
    ]


async def test_a_stream_gives_what_the_whole_response_gives(rig: Any) -> None:
    model = rig.model([["So:", rig.call(1, a=1)], "cut"], reasoning="hm")
    deltas = []
    async with rig.playing(model) as (gateway, session), client(gateway, session) as api:
        async with api.responses.stream(model="m", input="?", tools=[ADD]) as stream:
            async for event in stream:
                deltas.append(getattr(event, "delta", None))
            whole = await stream.get_final_response()
        model.finish = "length"
        cut = await api.responses.create(model="m", input="?")

    assert [it.type for it in whole.output] == ["reasoning", "message", "function_call"]
    assert (whole.output_text, whole.output[2].arguments) == ("So:", '{"a": 1}')
    assert [delta for delta in deltas if delta] == ["hm", "hm", "So:", '{"a": 1}']  # As summary and as content.
    assert (whole.output[0].summary[0].text, whole.output[0].content[0].text) == ("hm", "hm")
    assert whole.usage.output_tokens == 4
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"previous_response_id": "resp_0"}, "of no response of this episode"),
        ({"text": {"format": {"type": "regex"}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "function tools"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "refers to 'x'"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"input": []}, "input is empty"),
    ],
)
async def test_what_cannot_be_answered_is_refused_with_the_reason(rig: Any, more: Any, problem: str) -> None:
    async with rig.playing(rig.model([])) as (gateway, session), client(gateway, session) as api:
        with pytest.raises(openai.BadRequestError, match=problem):
            await api.responses.create(**{"model": "m", "input": "Hello", **more})
