"""The tools, over an index of this process and over HTTP, behind the policy that a run puts around them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolrl.config.tool_policy import PolicyOptions, RetryOptions
from toolrl.errors import ToolsetError
from toolrl.tools.toolbox import ToolBox, ToolBoxSession, ToolEntry
from toolrl.tools.truncate import token_cut
from toolrl.types import CallRecord, ToolCall, ToolResult
from toolrl_plugin_search.client import RetrievalApiError, RetrievalClient
from toolrl_plugin_search.options import SearchOptions
from toolrl_plugin_search.passages import Hit, Passage
from toolrl_plugin_search.retrievers import Retriever
from toolrl_plugin_search.tool import MAX_QUERY_CHARS, NOTHING, SearchToolset, make_query_rag, make_search
from toolrl_testing import FakeChatFormat, make_build_context, make_episode_context
from toolrl_testing.http_stub import HttpReply, HttpStub

RETRY = PolicyOptions(retry=RetryOptions(first_delay=0.01, max_delay=0.05))


def tool(**options: Any) -> SearchToolset:
    return make_search(SearchOptions(**options), make_build_context("search"))


def in_session(
    made: SearchToolset, work: Callable[[ToolBoxSession], Awaitable[Any]], policy: PolicyOptions | None = None
) -> Any:
    async def run() -> Any:
        entry = ToolEntry("search", made, policy=policy or PolicyOptions())
        box = ToolBox([entry], cut=token_cut(FakeChatFormat()))
        context = make_episode_context()
        await box.start()
        try:
            async with box.open(context.task, context) as session:
                return await work(session)
        finally:
            await box.stop()

    return asyncio.run(run())


def answers(made: SearchToolset, *calls: dict[str, Any], policy: PolicyOptions | None = None) -> list[ToolResult]:
    """The answers to calls of one turn."""

    async def work(session: ToolBoxSession) -> Sequence[CallRecord]:
        return await session.answer([ToolCall(made.spec.name, call) for call in calls])

    return [record.result for record in in_session(made, work, policy)]


def ask(url: str, queries: Sequence[str] = ("q",), topk: int = 1, **settings: Any) -> list[list[Hit]]:
    async def run() -> list[list[Hit]]:
        async with RetrievalClient(url, **settings) as client:
            return await client.retrieve(queries, topk)

    return asyncio.run(run())


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "either `index`"),
            ({"index": "a", "url": "http://a"}, "either `index`"),
            ({"url": "ftp://a"}, "expected an address"),
        ],
    )
    def test_what_doesnt_fit(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            SearchOptions(**options)


class TestEmbedded:
    def test_text_as_in_search_r1(self, index_folder: Path) -> None:
        (found,) = answers(tool(index=str(index_folder), topk=2), {"query": "the capital of Norway"})
        assert found.text == (
            'Doc 1(Title: "Oslo") Oslo is the capital of Norway.\n'
            'Doc 2(Title: "Denmark") Denmark is a country. Its capital is Copenhagen.\n'
        )
        assert found.metrics["passages"] == 2

    def test_query_rag_answers_json_and_takes_topk(self, index_folder: Path) -> None:
        made = make_query_rag(SearchOptions(index=str(index_folder), max_topk=3), make_build_context("query_rag"))
        assert set(made.spec.parameters["properties"]) == {"query", "topk"}
        one, capped = answers(made, {"query": "Denmark", "topk": 1}, {"query": "is", "topk": 10**6})
        (hits,) = json.loads(one.text)["result"]
        assert [hit["document"]["id"] for hit in hits] == ["10"]
        assert hits[0]["score"] > 0
        assert len(json.loads(capped.text)["result"][0]) == 3

    def test_nothing_found_and_passages_cut(self, index_folder: Path) -> None:
        made = tool(index=str(index_folder), topk=1, max_passage_chars=12)
        nothing, cut = answers(made, {"query": "zzz"}, {"query": "Oslo"})
        assert (nothing.text, nothing.error) == (NOTHING, None)
        assert cut.text == 'Doc 1(Title: "Oslo") Oslo  …\n'

    @pytest.mark.parametrize("arguments", [{"query": ""}, {"query": " \n"}, {"query": "a", "topk": 0}])
    def test_arguments_that_dont_fit(self, index_folder: Path, arguments: dict[str, Any]) -> None:
        (found,) = answers(tool(index=str(index_folder)), arguments)
        assert found.error == "bad_arguments"


class TestRemote:
    def test_a_call(self, stub: HttpStub) -> None:
        made = tool(url=stub.url, topk=2, headers={"Authorization": "Bearer key"}, patience=None)
        (found,) = answers(made, {"query": "who wrote faust"})
        assert found.text == ('Doc 1(Title: "who wrote faust") number 0\nDoc 2(Title: "who wrote faust") number 1\n')
        (request,) = stub.requests
        assert request == {"path": "/retrieve", "queries": ["who wrote faust"], "topk": 2, "return_scores": True}
        assert stub.headers[0]["Authorization"] == "Bearer key"

    def test_calls_at_once_are_one_request(self, stub: HttpStub) -> None:
        calls = [{"query": f"q{number}", "topk": 1 + number % 3} for number in range(30)]
        found = answers(tool(url=stub.url, max_batch=30, patience=None), *calls)
        assert [result.metrics["passages"] for result in found] == [call["topk"] for call in calls]
        assert all(f'"q{number}"' in result.text for number, result in enumerate(found))
        assert [len(request["queries"]) for request in stub.requests] == [30]

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_what_may_pass_is_made_again_by_the_policy(self, stub: HttpStub, status: int) -> None:
        busy = HttpReply({"detail": "later"}, status, {"Retry-After": "0"})
        stub.script(busy, HttpReply(drop=True), None)
        (found,) = answers(tool(url=stub.url, patience=None), {"query": "q"}, policy=RETRY)
        assert found.error is None
        assert found.metrics["policy/retries"] == 2
        assert len(stub.requests) == 3

    def test_one_refused_query_doesnt_take_its_batch_along(self, stub: HttpStub) -> None:
        usual = stub.answer
        stub.answer = lambda request: (
            HttpReply({"detail": "no such word"}, 422) if "bad" in request["queries"] else usual(request)
        )
        made = tool(url=stub.url, max_batch=3, patience=None)
        good, bad, other = answers(made, {"query": "a"}, {"query": "bad"}, {"query": "b"})
        assert (good.error, other.error) == (None, None)
        assert bad.error == "search_error"
        assert "no such word" in bad.text

    @pytest.mark.parametrize("status", [301, 401, 403, 404])
    def test_a_wrong_address_or_key_is_told_at_the_start(self, stub: HttpStub, status: int) -> None:
        stub.script(HttpReply({"detail": "not here"}, status, {"Location": "http://127.0.0.1:1/x"}))
        with pytest.raises(ToolsetError, match=f"HTTP {status}.*not here"):
            answers(tool(url=stub.url), {"query": "q"})
        assert len(stub.requests) == 1

    def test_long_queries_are_cut_and_half_characters_replaced(self, stub: HttpStub) -> None:
        answers(tool(url=stub.url, patience=None), {"query": "\ud800" + "x" * 100_000})
        (query,) = stub.requests[0]["queries"]
        assert len(query) == MAX_QUERY_CHARS
        assert query.startswith("?x")


class TestClient:
    def test_answers_that_are_none(self, stub: HttpStub) -> None:
        for body in (b"<html>", b"[" * 100_000, {}, {"result": 1}, {"result": []}, {"result": [1]}, {"result": [[1]]},
                     {"result": [[{"document": {}, "score": 1}]]},
                     {"result": [[{"document": {"contents": "a"}, "score": "x"}]]},
                     {"result": [[{"document": {"contents": "a"}, "score": 10**400}]]}):  # fmt: skip
            stub.script(HttpReply(body))
            with pytest.raises(RetrievalApiError, match="can't be read"):
                ask(stub.url)


class Recorder(Retriever):
    """Finds each query itself; notes its batches, and waits where it is told to."""

    def __init__(self, **bounds: Any) -> None:
        super().__init__(**bounds)
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = 0
        self.at_once = self.most_at_once = 0

    async def start(self) -> None: ...

    async def ask(self, query: str) -> str:
        return (await self.search(query, 1))[0].passage.id

    async def _find(self, queries: list[str], topk: int) -> list[list[Hit]]:
        self.batches.append(queries)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_once -= 1
        if "bad" in queries:
            raise ValueError("all of them")
        return [[Hit(Passage(query, query), 1.0)] * 2 for query in queries if query != "lost"]


async def until(condition: Any) -> None:
    """Go round the event loop until it holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def test_batches_are_bounded_in_size_and_number() -> None:
    retriever = Recorder(max_batch=4, at_once=2)
    retriever.gate.clear()
    names = [str(number) for number in range(20)]
    asked = [asyncio.ensure_future(retriever.ask(name)) for name in names]
    await until(lambda: len(retriever.batches) == 2)
    retriever.gate.set()
    assert await asyncio.gather(*asked) == names
    assert max(map(len, retriever.batches)) == 4
    assert retriever.most_at_once == 2
    assert sorted(name for batch in retriever.batches for name in batch) == sorted(names)
    await retriever.stop()


async def test_a_query_whose_caller_is_cancelled_before_its_batch_isnt_in_it() -> None:
    before = asyncio.all_tasks()
    retriever = Recorder(max_batch=2, at_once=1)
    retriever.gate.clear()
    one, two, three, four = (asyncio.ensure_future(retriever.ask(name)) for name in "0123")
    await until(lambda: retriever.batches)
    three.cancel()
    one.cancel()
    await until(one.done)
    retriever.gate.set()
    assert await asyncio.gather(two, four) == ["1", "3"]
    assert retriever.batches == [["0", "1"], ["3"]]
    await retriever.stop()
    assert asyncio.all_tasks() == before


async def test_stop_ends_what_runs() -> None:
    before = asyncio.all_tasks()
    retriever = Recorder(max_batch=1, at_once=1)
    retriever.gate.clear()
    asked = [asyncio.ensure_future(retriever.ask(name)) for name in "012"]
    await until(lambda: retriever.batches)
    await retriever.stop()
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in done)
    assert retriever.cancelled == 1
    assert asyncio.all_tasks() == before
