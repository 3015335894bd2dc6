"""Messages as bytes: the bound, whose answer a long one is, and what of a message the SDK gets."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl_plugin_mcp.contents import read_result
from toolrl_plugin_mcp.events import EventReader, fit_event
from toolrl_plugin_mcp.messages import MOST_CONTENTS, LongMessage, MessageBuffer, fit_message

LIMIT = 65536
RESULT = {"content": [{"type": "text", "text": 'a, "id": 9}' * 20_000}], "isError": False}
ORDERS = {
    "python, go, rust, java": lambda body, number: {"jsonrpc": "2.0", "id": number, **body},
    "typescript": lambda body, number: {**body, "jsonrpc": "2.0", "id": number},
    "c#": lambda body, number: {**body, "id": number, "jsonrpc": "2.0"},
    "id first": lambda body, number: {"id": number, "jsonrpc": "2.0", **body},
    "around": lambda body, number: {"jsonrpc": "2.0", **body, "id": number},
}


def collected(data: bytes, limit: int = LIMIT, step: int = 5000) -> bytes | LongMessage:
    buffer = MessageBuffer(limit)
    for start in range(0, len(data), step):
        buffer.add(data[start : start + step])
    return buffer.take()


async def fit(message: bytes) -> bytes:
    return await fit_message(message, 1 << 30)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("number", [0, 17, "a-1", 'q"}'])
@pytest.mark.parametrize("body", [{"result": RESULT}, {"error": {"code": 1, "message": "no" * LIMIT}}])
@pytest.mark.parametrize("order", ORDERS)
async def test_a_long_answer_becomes_an_error_to_its_request(order: str, body: Any, number: Any, indent: Any) -> None:
    long = collected(json.dumps(ORDERS[order](body, number), indent=indent).encode())
    assert isinstance(long, LongMessage)
    assert len(long.head) + len(long.tail) < LIMIT / 4
    answer = json.loads(await fit_message(long, LIMIT))
    assert answer["id"] == number
    assert "more than 65536 bytes" in answer["error"]["message"]
    assert "max_message_bytes" in answer["error"]["message"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("number", [3, None])
async def test_what_a_server_asks_or_tells_answers_nothing(
    order: str, number: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ids are its own: one may be that of a call under way."""
    body = {"method": "sampling/createMessage", "params": {"text": "x" * 2 * LIMIT}}
    message = ORDERS[order](body, number)
    if number is None:
        del message["id"]
    assert await fit_message(collected(json.dumps(message).encode()), LIMIT) == b""
    assert "max_message_bytes" in caplog.text


@given(
    st.lists(
        st.one_of(
            st.text(max_size=5).map(lambda text: {"type": "text", "text": text}),
            st.sampled_from(
                [{"type": "resource_link", "name": "n", "uri": "x://a"}, {"type": "audio", "data": "UklG"}]
            ),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_many_contents_read_the_same_and_are_few(contents: list[dict[str, Any]]) -> None:
    times = 3 * MOST_CONTENTS // len(contents)
    result = {"content": [*contents * times, {"type": "text", "text": "x" * LIMIT}]}
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()
    fitting = json.loads(asyncio.run(fit(message)))["result"]
    assert len(fitting["content"]) <= MOST_CONTENTS + 1
    text, expected = read_result(fitting, images=False).text, read_result(result, images=False).text
    if "more contents left out" not in text:
        assert text == expected
    else:
        shown, _, rest = text.rpartition("\n\n[")
        assert expected.startswith(shown)
        assert int(rest.split()[0]) > 0


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"no JSON " * 20_000,
        b'["type"' + b', "type"' * 20_000 + b"]",
        b'{"id": 1, "result": {"content": {"type": 1}, "more": ["type"' + b', "type"' * 20_000 + b"]}}",
        b'{"id": 1, "result": {"content": "[' + b'"type"' * 20_000,
        json.dumps({"id": 1, "result": {"tools": [{"type": "type"}] * 20_000}}).encode(),
    ],
)
async def test_other_messages_are_left_to_the_sdk(message: bytes) -> None:
    assert await fit(message) == message


# Events.


def event(message: Any, end: str, number: int | None = None) -> bytes:
    fields = ["event: message", *([f"id: {number}"] if number is not None else []), f"data: {json.dumps(message)}"]
    return "".join(f"{field}{end}" for field in [*fields, ""]).encode()


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["\n", "\r\n", "\r"])), max_size=6),
    st.lists(st.integers(0, 5000), max_size=30),
)
def test_events_come_whole_wherever_the_stream_is_cut(kinds: list[tuple[bool, str]], cuts: list[int]) -> None:
    limit = 500
    stream = b": hello\n\n" + b"".join(
        event({"jsonrpc": "2.0", "id": number, "result": {"a": "ä\u2028\\n" * (200 if long else 3)}}, end, number)
        for number, (long, end) in enumerate(kinds)
    )
    reader = EventReader(limit)

    async def fitting() -> list[bytes]:
        return [await fit_event(found, limit) for piece in pieces(stream, cuts) for found in reader.read(piece)]

    read = asyncio.run(fitting())
    answers = [
        (json.loads(line[5:]), found) for found in read for line in found.splitlines() if line.startswith(b"data:")
    ]
    assert [answer["id"] for answer, _ in answers] == list(range(len(kinds)))
    assert ["error" in answer for answer, _ in answers] == [long for long, _ in kinds]
    assert all(f"id: {number}".encode() in found for number, (_, found) in enumerate(answers))


async def test_an_event_left_out_keeps_its_id() -> None:
    """A stream that breaks is resumed after it."""
    told = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}
    (found,) = EventReader(LIMIT).read(event(told, "\n", 5))
    fitting = await fit_event(found, LIMIT)
    assert b"id: 5" in fitting
    assert b"data" not in fitting
