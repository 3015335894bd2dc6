"""Chat completions as the openai SDK reads them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolrl.errors import ContextFullError, EngineError, TurnsExhaustedError
from toolrl.types import CallError, Message

openai = pytest.importorskip("openai")
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
HELLO = [{"role": "user", "content": "Hello"}]


def client(gateway: Any, session: Any, **options: Any) -> Any:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=session.key, **options)


async def test_a_turn_with_calls_is_answered_and_quoted_as_it_was(rig: Any) -> None:
    model = rig.model([["Let me see.", rig.call(1, a=1, b=[2.5])], "3.5"], reasoning="hm")
    async with rig.playing(model) as (gateway, session), client(gateway, session) as api:
        messages: list[Any] = [{"role": "developer", "content": "Add."}, *HELLO]
        first = await api.chat.completions.create(model="m", messages=messages, tools=[ADD], max_completion_tokens=9)
        message = first.choices[0].message
        messages += [message.model_dump(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3.5"}]
        second = await api.chat.completions.create(model="m", messages=messages, tools=[ADD])

    assert first.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls[0].function.arguments == '{"a": 1, "b": [2.5]}'
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("3.5", "stop")
    assert second.usage.prompt_tokens == 10
    asked, tools, limits = model.asked[0]
    assert asked == [Message("system", "Add."), Message("user", "Hello")]
    assert tools[0].name == "add"
    assert limits == {"role": "agent", "max_tokens": 9, "stop": ()}
    quoted = model.asked[1][0][2:]
    assert quoted[0] == Message("assistant", "Let me see.", tool_calls=(rig.call(1, a=1, b=[2.5]),), reasoning="hm")
    assert quoted[1] == Message("tool", "3.5", tool_call_id="call_1", name="add")


async def test_a_stream_gives_what_the_whole_answer_gives(rig: Any) -> None:
    model = rig.model([["So:", rig.call(1, a=1), rig.call(2, a=2)]])
    asked = {"model": "m", "messages": HELLO, "tools": [ADD], "stream_options": {"include_usage": True}}
    async with (
        rig.playing(model) as (gateway, session),
        client(gateway, session) as api,
        api.chat.completions.stream(**asked) as stream,
    ):
        whole = await stream.get_final_completion()

    choice = whole.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("So:", "tool_calls")
    assert [it.function.arguments for it in choice.message.tool_calls] == ['{"a": 1}', '{"a": 2}']
    assert [it.id for it in choice.message.tool_calls] == ["call_1", "call_2"]
    assert whole.usage.completion_tokens == 4


async def test_a_stop_sequence_is_cut(rig: Any) -> None:
    model = rig.model(["Thought\nObservation:"])
    async with rig.playing(model) as (gateway, session), client(gateway, session) as api:
        first = await api.chat.completions.create(model="m", messages=HELLO, stop=["Observation:"])

    assert first.choices[0].message.content == "Thought\n"
    assert model.asked[0][2]["stop"] == ("Observation:",)


async def test_a_call_that_could_not_be_parsed_is_text(rig: Any) -> None:
    model = rig.model([["I add.", CallError("invalid_json", "no JSON", raw="<tool_call>{</tool_call>")]])
    async with rig.playing(model) as (gateway, session), client(gateway, session) as api:
        first = await api.chat.completions.create(model="m", messages=HELLO, tools=[ADD])

    message = first.choices[0].message
    assert (message.content, message.tool_calls) == ("I add.\n<tool_call>{</tool_call>", None)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"n": 2}, "n is 2"),
        ({"response_format": {"type": "regex"}}, "response_format.type"),
        ({"tools": [{"type": "web_search"}]}, "function tools"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "role is 'bot'"),
        ({"messages": "hello"}, "messages is str"),
    ],
)
async def test_what_cannot_be_answered_is_refused_with_the_reason(rig: Any, more: Any, problem: str) -> None:
    async with rig.playing(rig.model([])) as (gateway, session), client(gateway, session) as api:
        with pytest.raises(openai.BadRequestError, match=problem):
            await api.chat.completions.create(**{"model": "m", "messages": HELLO, **more})
    assert session.counts["refused"] == 1


@pytest.mark.parametrize(
    ("error", "status", "code", "stop"),
    [
        (ContextFullError("the prompt has 99 tokens"), 400, "context_length_exceeded", "context_full"),
        (TurnsExhaustedError("the agent had its 4 turns"), 400, "turns_exhausted", "max_turns"),
        (EngineError("out of memory"), 500, "engine_failed", None),
    ],
)
async def test_what_ends_an_episode_is_not_retried(rig: Any, error: Any, status: int, code: str, stop: Any) -> None:
    model = rig.model([error] * 9)
    async with rig.playing(model) as (gateway, session), client(gateway, session) as api:
        with pytest.raises(openai.APIStatusError) as caught:
            await api.chat.completions.create(model="m", messages=HELLO)

    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert len(model.asked) == 1
    assert session.stop == stop
    assert session.failure is (error if status == 500 else None)


async def test_a_marked_retry_gets_the_answer_that_is_there_or_on_its_way(rig: Any) -> None:
    model = rig.model(["one", "two", "three"], seconds=0.05)
    ask: Any = {"model": "m", "messages": HELLO}
    again = {"x-stainless-retry-count": "1"}
    async with rig.playing(model) as (gateway, session), client(gateway, session) as api:
        create = api.chat.completions.create
        first, joined = await asyncio.gather(create(**ask), create(**ask, extra_headers=again))
        replayed = await create(**ask, extra_headers=again)
        fresh = await create(**ask)
        other = await create(**{**ask, "messages": HELLO * 2}, extra_headers=again)
        models = [it.id async for it in await api.models.list()]

    assert first.id == joined.id == replayed.id
    assert [it.choices[0].message.content for it in (first, fresh, other)] == ["one", "two", "three"]
    assert session.counts["replayed"] == 2
    assert models == ["agent"]


async def test_a_client_that_leaves_cancels_its_generation(rig: Any) -> None:
    model = rig.model(lambda messages: "late", seconds=30)
    async with rig.playing(model) as (gateway, session), client(gateway, session, max_retries=1) as api:
        with pytest.raises(openai.APITimeoutError):
            await api.chat.completions.create(model="m", messages=HELLO, timeout=0.2)
        await rig.until(lambda: model.cancelled == 2)


async def test_the_end_of_an_episode_answers_what_is_on_its_way(rig: Any) -> None:
    model = rig.model(lambda messages: "late", seconds=30)
    async with rig.listening() as gateway:
        async with rig.session(gateway, model) as session:
            api = client(gateway, session)
            asking = asyncio.create_task(api.chat.completions.create(model="m", messages=HELLO))
            await rig.until(lambda: model.asked)
        with pytest.raises(openai.APIStatusError) as caught:
            await asking
        assert caught.value.status_code == 410
        with pytest.raises(openai.AuthenticationError):
            await api.chat.completions.create(model="m", messages=HELLO)
        await api.close()
    assert model.cancelled == 1


async def test_sampling_is_the_runs_and_a_models_name_picks_the_role(rig: Any) -> None:
    model = rig.model(lambda messages: "yes")
    async with rig.playing(model, judge="critic") as (gateway, session), client(gateway, session) as api:
        await api.chat.completions.create(model="judge", messages=HELLO, temperature=0.0, reasoning_effort="low")
        await api.chat.completions.create(model="other", messages=HELLO, tool_choice="auto", top_p=None)

    assert session.counts == {"requests": 2}
    assert [limits["role"] for _, _, limits in model.asked] == ["critic", "agent"]
