"""The retrieval server: asked by the client, by hand, and as a command in a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from toolrl.cli.main import main
from toolrl.errors import TransientToolError
from toolrl_plugin_search.client import RetrievalClient
from toolrl_plugin_search.passages import Hit, Index, Passage
from toolrl_plugin_search.retrievers import open_index
from toolrl_plugin_search.server import RetrievalServer

TOOLRL = (sys.executable, "-m", "toolrl", "search")


class Held:
    """An index that answers when the test says so, and notes the sizes of its batches."""

    kind = "held"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return 1

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.sizes.append(len(queries))
        self.gate.wait(60)
        return [[Hit(Passage("0", query), 1.0)] * topk for query in queries]


def serve(index: Index, work: Callable[[RetrievalServer], Awaitable[Any]], **settings: Any) -> Any:
    async def run() -> Any:
        before = asyncio.all_tasks()
        async with RetrievalServer(index, port=0, **settings) as server:
            value = await work(server)
        assert asyncio.all_tasks() == before, "the server left tasks"
        return value

    return asyncio.run(run())


async def post(url: str, body: Any, **fields: Any) -> tuple[int, Any]:
    data = fields.pop("data", None)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/retrieve", json=None if data is not None else body, data=data, **fields) as response,
    ):
        return response.status, await response.json()


class TestApi:
    def test_as_search_r1_answers(self, index_folder: Path) -> None:
        async def work(server: RetrievalServer) -> Any:
            queries = ["capital of Norway", "zzz"]
            with_scores = await post(server.url, {"queries": queries, "topk": 2, "return_scores": True})
            without = await post(server.url, {"queries": queries, "topk": 1})
            usual = await post(server.url, {"queries": ["is"], "topk": 0})
            nothing = await post(server.url, {"queries": []})
            async with aiohttp.ClientSession() as session, session.get(f"{server.url}/health") as response:
                return with_scores, without, usual, nothing, await response.json()

        with_scores, without, usual, nothing, health = serve(open_index(index_folder), work, topk=3)
        status, body = with_scores
        assert status == 200
        (first, second), none = body["result"]
        assert first["document"] == {"id": "9", "contents": '"Oslo"\nOslo is the capital of Norway.'}
        assert first["score"] > second["score"] > 0
        assert none == []
        assert without == (200, {"result": [[first["document"]], []]})
        assert len(usual[1]["result"][0]) == 3
        assert nothing == (200, {"result": []})
        assert health == {"status": "ok", "kind": "bm25", "passages": 4}

    @pytest.mark.parametrize(
        ("body", "status", "message"),
        [
            (b"{", 422, "no JSON"),
            (b"[" * 100_000, 422, "no JSON"),
            (b"[]", 422, "`the body`: Input should be"),
            (b"{}", 422, "`queries`"),
            (b'{"queries": "a"}', 422, "`queries`"),
            (b'{"queries": [1]}', 422, "`queries.0`"),
            (b'{"queries": ["a"], "topk": "x"}', 422, "`topk`"),
            (b'{"queries": ["a"], "topk": -1}', 422, "`topk`"),
            (b'{"queries": ["a"], "topk": 100000}', 422, "`topk`"),
            (b'{"queries": ["a"], "return_scores": 1}', 422, "`return_scores`"),
            (b'{"queries": ["' + b"x" * (2 << 20) + b'"]}', 413, "larger than 1 MiB"),
        ],
    )
    def test_bad_requests(self, index_folder: Path, body: bytes, status: int, message: str) -> None:
        async def work(server: RetrievalServer) -> tuple[int, Any]:
            return await post(server.url, None, data=body, headers={"Content-Type": "application/json"})

        found = serve(open_index(index_folder), work, max_request_mb=1)
        assert found[0] == status
        assert message in found[1]["detail"]


class TestLoad:
    def test_requests_at_once_are_one_batch(self) -> None:
        index = Held()

        async def work(server: RetrievalServer) -> list[tuple[int, Any]]:
            asked = [asyncio.ensure_future(post(server.url, {"queries": ["a", "b"], "topk": 1})) for _ in range(10)]
            async with asyncio.timeout(60):
                while server._under_way < 20:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.001)
            index.gate.set()
            return await asyncio.gather(*asked)

        found = serve(index, work)
        assert {status for status, _ in found} == {200}
        assert all(len(body["result"]) == 2 for _, body in found)
        assert sum(index.sizes) == 20
        assert len(index.sizes) < 10, "what waited while a batch ran went together"

    def test_too_many_are_told_to_come_back(self) -> None:
        index = Held()

        async def work(server: RetrievalServer) -> tuple[list[list[Hit]], TransientToolError]:
            async with RetrievalClient(server.url) as client:
                first = asyncio.ensure_future(client.retrieve(["a", "b"], 1))
                async with asyncio.timeout(60):
                    while not server._under_way:  # noqa: ASYNC110 - it has no event
                        await asyncio.sleep(0.001)
                with pytest.raises(TransientToolError, match="HTTP 503") as busy:
                    await client.retrieve(["c"], 1)
                index.gate.set()
                return await first, busy.value

        found, busy = serve(index, work, queue=2)
        assert len(found) == 2
        assert busy.retry_after == 1

    def test_a_client_that_leaves_frees_its_place(self) -> None:
        index = Held()

        async def work(server: RetrievalServer) -> None:
            async with asyncio.timeout(60):
                asked = asyncio.ensure_future(post(server.url, {"queries": ["a"]}))
                while not index.sizes:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.001)
                asked.cancel()
                while server._under_way:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.001)
            index.gate.set()
            assert (await post(server.url, {"queries": ["b"]}))[0] == 200

        serve(index, work)


class TestCommands:
    @pytest.fixture(autouse=True)
    def _captured(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Status, stdout and stderr of a command in this process."""
        try:
            status = main(["search", *arguments])
        except SystemExit as error:  # argparse's
            status = int(error.code or 0)
        return status, *self.capsys.readouterr()

    def test_index_serve_query(self, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        folder = str(tmp_path / "made")
        assert "4 passages, 38 words, 25 different ones" in self.run("index", str(corpus_file), "--out", "~/made")[1]
        status, _, said = self.run("index", str(corpus_file), "--out", folder)
        assert status == 1
        assert "exists" in said
        _, local, _ = self.run("query", folder, "capital of Norway", "--topk", "1", "--json")
        with subprocess.Popen([*TOOLRL, "serve", folder, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                line = server.stdout.readline()
                found = re.search(r"serving 4 passages \(bm25\) on (http://127\.0\.0\.1:\d+)/retrieve", line)
                assert found is not None, line
                _, remote, _ = self.run("query", found[1], "capital of Norway", "--topk", "1", "--json")
                _, plain, _ = self.run("query", found[1], "capital of Norway")
            finally:
                server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        assert json.loads(remote) == json.loads(local)
        assert json.loads(local)["result"][0][0]["document"]["id"] == "9"
        assert "Oslo is the capital of Norway." in plain

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("index", "missing.jsonl", "--out", "x"), "no file matches"),
            (("index", __file__, "--out", "x", "--kind", "dense"), "needs an encoder"),
            (("serve", "."), "holds no index"),
            (("query", ".", "a"), "holds no index"),
            (("serve", ".", "--workers", "0"), "expected 1 to"),
            (("serve", ".", "--port", "99999"), "expected 0 to 65535"),
            (("query", "http://127.0.0.1:0", "a"), "expected an address"),
        ],
    )
    def test_mistakes_are_messages(self, arguments: tuple[str, ...], message: str) -> None:
        status, _, said = self.run(*arguments)
        assert status in (1, 2)
        assert message in said
