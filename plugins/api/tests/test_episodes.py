"""Episodes whose model stands behind an API."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from api_stub import KEY, refuses, says
from pydantic import ValidationError

from toolrl.errors import RunStoppedError
from toolrl.loop.metrics import episode_metrics
from toolrl.protocols import EpisodeContext
from toolrl.runs.records import episode_from_json, episode_to_json
from toolrl.types import Episode, Group, Message, Task, ToolCall, ToolResult, ToolSpec
from toolrl_plugin_api.options import ChatOptions
from toolrl_plugin_api.stand_ins import Characters
from toolrl_testing.fakes import FakeParser, make_build_context
from toolrl_testing.http_stub import HttpReply, HttpStub

Run = Callable[..., list[Episode]]


def test_the_api_calls_tools_and_answers(api: HttpStub, run: Run) -> None:
    api.script(says(None, ("double", '{"number": 4}'), finish="tool_calls"), says("It is 8."))
    (episode,) = run(input_price=1.0, cached_input_price=0.5, output_price=10.0)
    assert (episode.stop_reason, episode.final_text, episode.failure) == ("final", "It is 8.", None)
    first, second = api.requests
    assert first["tools"][0]["function"]["name"] == "double"
    assert (first["temperature"], first["max_tokens"]) == (0.7, 50)
    assert [it["role"] for it in second["messages"]] == ["user", "assistant", "tool"]
    assert second["messages"][2]["content"] == "8"
    assert second["messages"][2]["tool_call_id"] == second["messages"][1]["tool_calls"][0]["id"]
    assert not episode.ids
    assert episode.sampled_tokens == 20
    assert episode.prompt_length == 100
    metrics = episode_metrics([Group("g", episode.task, (episode,))])
    assert metrics["usage/requests"] == 2
    assert metrics["usage/prompt_tokens"] == 200
    assert metrics["usage/cost"] == pytest.approx(2 * (60 * 1.0 + 40 * 0.5 + 10 * 10.0) / 1e6)
    assert episode_from_json(episode_to_json(episode)) == episode


def test_a_call_that_cannot_be_read_is_answered(api: HttpStub, run: Run) -> None:
    api.script(says(None, ("double", '{"number": ')), says("Never mind."))
    (episode,) = run()
    assert episode.calls[0].result.error == "malformed"
    said, result = api.requests[1]["messages"][1:]
    assert result["tool_call_id"] == said["tool_calls"][0]["id"]
    assert "one JSON object" in result["content"]


def test_the_parser_reads_calls_in_the_text(api: HttpStub, run: Run) -> None:
    api.script(says("CALL"), says("Done."))
    (episode,) = run(parser=FakeParser(lambda text: ["double"] if text == "CALL" else []), tools="parser")
    assert [record.call.name for record in episode.calls] == ["double"]
    first, second = api.requests
    assert "tools" not in first
    assert '"double"' in first["messages"][0]["content"]
    assert second["messages"][2] == {"role": "assistant", "content": "CALL"}, "word for word"
    assert second["messages"][3]["role"] == "user"
    assert "<tool_response>" in second["messages"][3]["content"]


@pytest.mark.parametrize(
    ("reply", "stop"),
    [
        (says("Too lo", finish="length"), "max_tokens"),
        (says("", finish="content_filter"), "aborted"),
        (says(None, refusal="I won't."), "final"),
        (says(None), "final"),
        (refuses(400, "This model's maximum context length is 8192 tokens."), "context_full"),
        (refuses(400, "Filtered.", "content_filter"), "aborted"),
        (says("<answer>8</answer>"), "answer"),
    ],
)
def test_how_an_episode_ends(api: HttpStub, run: Run, reply: HttpReply, stop: str) -> None:
    api.script(reply)
    (episode,) = run(flags=("answer",))
    assert (episode.stop_reason, episode.failure) == (stop, None)


def test_a_full_episode_ends_by_the_number_of_characters(api: HttpStub, run: Run) -> None:
    api.script(says("x" * 6000, ("double", '{"number": 4}')))
    (episode,) = run()
    assert (episode.stop_reason, len(api.requests)) == ("context_full", 1)


def test_fields_of_the_request(api: HttpStub, run: Run) -> None:
    run(omit=["temperature"], max_tokens_field="max_completion_tokens", extra={"reasoning_effort": "low"})
    (request,) = api.requests
    assert "temperature" not in request
    assert "max_tokens" not in request
    assert request["max_completion_tokens"] == 50
    assert request["reasoning_effort"] == "low"
    assert api.headers[0]["Authorization"] == f"Bearer {KEY}"


# What fails.


@pytest.mark.parametrize(
    "reply",
    [
        refuses(429, **{"Retry-After": "0"}),
        refuses(524),
        HttpReply(drop=True),
        HttpReply({"error": {"code": 502, "message": "provider"}}),
    ],
    ids=["busy", "broken", "dropped", "router"],
)
def test_what_may_pass_is_asked_again(api: HttpStub, run: Run, reply: HttpReply) -> None:
    api.script(reply, reply, says())
    (episode,) = run()
    assert episode.failure is None
    assert len(api.requests) == 3
    assert episode.turns[0].usage["retries"] == 2


def test_what_stays_broken_fails_the_episode_and_blames_the_api(api: HttpStub, run: Run) -> None:
    api.script(refuses(503, "overloaded"))
    (episode,) = run()
    assert episode.failure is not None
    assert len(api.requests) == 3
    assert (episode.failure.fault, "overloaded" in episode.failure.message) == ("engine", True)
    assert api.url in episode.failure.component


@pytest.mark.parametrize("body", [{"choices": "ab", "by": KEY}, [KEY], {"error": {"code": [502], "message": KEY}}])
def test_an_answer_of_another_form_fails_the_episode_and_shows_no_key(api: HttpStub, run: Run, body: Any) -> None:
    api.script(HttpReply(body))
    (episode,) = run()
    assert episode.failure is not None
    assert "no chat completion" in episode.failure.message
    assert KEY not in repr(episode)


@pytest.mark.parametrize("count", [10**400, float("nan"), float("inf"), -1, "many"])
def test_counts_that_are_no_numbers_are_left_out(api: HttpStub, run: Run, count: Any) -> None:
    reply = says()
    reply.body["usage"] = {"prompt_tokens": count, "completion_tokens": 3}
    api.script(reply)
    (episode,) = run()
    assert (episode.failure, episode.sampled_tokens) == (None, 3)
    assert "prompt_tokens" not in episode.turns[0].usage


@pytest.mark.parametrize("status", [401, 403, 404, 400])
def test_a_wrong_address_key_or_request_stops_the_run(api: HttpStub, run: Run, status: int, caplog: Any) -> None:
    api.script(refuses(status, f"Wrong: {KEY}."))
    with caplog.at_level(logging.DEBUG), pytest.raises(RunStoppedError) as error:
        run(2)
    assert f"{api.url}/v1/chat/completions" in str(error.value)
    assert f"HTTP {status}" in str(error.value)
    assert KEY not in str(error.value) + caplog.text
    assert len(api.requests) <= 2


def test_a_request_that_others_were_unlike_fails_its_episode_alone(api: HttpStub, run: Run) -> None:
    api.script(says(None, ("double", '{"number": 4}')), refuses(400, "odd"))
    (episode,) = run()
    assert episode.failure is not None
    assert "odd" in episode.failure.message


def test_no_more_requests_at_once_than_the_config_allows(api: HttpStub, run: Run) -> None:
    def answer(_: dict[str, Any]) -> HttpReply:
        api.meet(3)
        return says()

    api.answer = answer
    assert all(episode.failure is None for episode in run(8, concurrency=3))
    assert api.most_at_once == 3


# Questions of an episode's parts.


class Asking:
    """A toolset whose tool asks the model twice in one conversation."""

    async def start(self) -> None:
        """Nothing to start."""

    stop = start

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Asking]:
        assert episode.model is not None
        self.model = episode.model
        yield self

    def specs(self) -> Sequence[ToolSpec]:
        return [ToolSpec("think", "Thinks.")]

    async def call(self, call: ToolCall) -> ToolResult:
        history = [Message("user", "a")]
        turn = await self.model.ask(history, role="helper")
        await self.model.ask([*history, turn.message, Message("user", "b")], role="helper")
        return ToolResult("thought")

    async def reward(self) -> None:
        return None


def test_parts_of_an_episode_ask_the_api(api: HttpStub, run: Run) -> None:
    api.script(says(None, ("think", "{}")), says("one"), says("two"), says("Done."))
    (episode,) = run(toolset=Asking())
    main, helper = episode.trajectories
    assert (main.role, helper.role, len(helper.turns)) == ("agent", "helper", 2)
    assert [it["content"] for it in api.requests[2]["messages"]] == ["a", "one", "b"]


def test_a_failure_of_a_question_is_the_apis(api: HttpStub, run: Run) -> None:
    api.script(says(None, ("think", "{}")), refuses(500, "down"))
    (episode,) = run(toolset=Asking())
    assert episode.failure is not None
    assert episode.failure.fault == "engine"


def test_texts_are_cut_without_a_tokenizer() -> None:
    chat, text = Characters(None, make_build_context()), "α–𝄞 and so on, "
    assert chat.decode(chat.inline(text)).text == text
    assert chat.token_count(text) == len(chat.inline(text)) == 5
    assert chat.decode(chat.inline("\x00")).text == "\x00"


@pytest.mark.parametrize(
    "options",
    [
        {"omit": ["temprature"]},
        {"omit": ["temperature", "seed"]},
        {"omit": ["max_tokens"], "max_tokens_field": "max_completion_tokens"},
    ],
)
def test_a_field_that_no_request_has_can_not_be_left_out(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="omit: a request has no"):
        ChatOptions(base_url="http://x", model="m", **options)
