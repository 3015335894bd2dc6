"""The engine `openai` without vLLM: what is sent and read, and how requests, updates and faults of a server go."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from vllm_help import listening

from toolrl.errors import EngineError
from toolrl.protocols import BuildContext
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm import completions
from toolrl_plugin_vllm.options import OpenaiEngineOptions
from toolrl_plugin_vllm.server import OpenaiEngine
from toolrl_testing.fakes import FakeWeights


def answer(**choice: Any) -> dict[str, Any]:
    given = {"token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -1.5]}, "finish_reason": "length"}
    return {"choices": [{**given, **choice}], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}


class Server:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.keys: set[str | None] = set()
        self.ports: set[int] = set()
        self.models = [{"id": "tiny", "max_model_len": 64}]
        self.held: asyncio.Event | None = None
        self.reply: Any = answer()
        self.update_status = 200
        self.cut = 0
        """Requests whose connection was closed before they were answered."""
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.ports.add(request.transport.get_extra_info("peername")[1])
        self.keys.add(request.headers.get("Authorization"))
        body = await request.json() if request.method == "POST" else None
        self.asked.append((request.path, body))
        if request.path == "/v1/models":
            return web.json_response({"data": self.models})
        if request.path == "/collective_rpc":
            return web.json_response({"results": []}, status=self.update_status)
        if request.path == "/reset_prefix_cache":
            return web.json_response({"success": True})
        if self.held is not None:
            try:
                await self.held.wait()
            except asyncio.CancelledError:
                self.cut += 1
                raise
        return self.reply if isinstance(self.reply, web.Response) else web.json_response(self.reply)

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    async with listening(server.handle) as server.url:
        try:
            yield server
        finally:
            if server.held is not None:
                server.held.set()


@pytest.fixture
def weights(tmp_path: Path) -> FakeWeights:
    made = FakeWeights()
    made.path = lambda: tmp_path  # type: ignore[method-assign]
    return made


def build(url: str, *, weights: Any = None, **options: Any) -> OpenaiEngine:
    given = {"verify_weights": False, **options}
    return OpenaiEngine(OpenaiEngineOptions(url=url, **given), BuildContext("openai", weights=weights, seed=3))


@asynccontextmanager
async def started(server: Server, **options: Any) -> AsyncIterator[OpenaiEngine]:
    running = build(server.url, **options)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


# What is sent and read.


def test_a_request_is_written() -> None:
    sampling = Sampling(7, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, stop=("a",), stop_token_ids=(1,))
    sent = completions.body("tiny", (5, 6), sampling, 11)
    assert sent["prompt"] == [5, 6]
    assert (sent["model"], sent["max_tokens"], sent["seed"], sent["logprobs"]) == ("tiny", 7, 11, 0)
    assert (sent["stop"], sent["stop_token_ids"], sent["return_token_ids"]) == (["a"], [1], True)
    assert (sent["top_p"], sent["top_k"], sent["min_p"]) == (0.9, 4, 0.1)
    assert sent["include_stop_str_in_output"]
    assert None not in completions.body("tiny", (5,), Sampling(1, temperature=0.0), 1).values()


def test_an_answer_is_read() -> None:
    read = completions.generation(answer(finish_reason="stop", stop_reason="x"), 4)
    assert read == Generation((5, 6), (-0.5, -1.5), "stop", "x", versions=(4, 4), cached=3)
    assert completions.generation(answer(finish_reason="stop"), 4).stopped_by == 6
    assert completions.generation({"choices": answer()["choices"]}, 0).cached == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "can't be read: .* valid dictionary"),
        ({"choices": []}, r"choices\.0\.token_ids: Field required .*got {'choices'"),
        (answer(token_ids=["5"]), r"choices\.0\.token_ids\.0: .* valid integer"),
        (answer(logprobs=None), "2 tokens and 0 log-probabilities"),
        (answer(logprobs={"token_logprobs": [-1.0, None]}), r"token_logprobs\.1: .* valid number"),
        (answer(logprobs={"token_logprobs": [-1.0, math.nan]}), "finite number"),
        (answer(logprobs={"token_logprobs": [-1.0, -math.inf]}), "finite number"),
        (answer(logprobs={"token_logprobs": [-1.0, 0.7]}), r"gave token 1 .* log-probability 0\.7"),
        (answer(finish_reason="tool_calls"), "'tool_calls'"),
        (answer(finish_reason="stop", stop_reason=[1]), r"stop_reason"),
    ],
)
def test_an_answer_that_holds_no_sample_is_refused(given: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        completions.generation(given, 0)


def test_the_probes_log_probabilities_are_read() -> None:
    entries = [None, {"6": {"logprob": -1.0}}, {"7": {"logprob": -2.0}, "9": {"logprob": -0.1}}]
    assert completions.prompt_logprobs(answer(prompt_logprobs=entries), [5, 6, 7]) == [-1.0, -2.0]
    with pytest.raises(EngineError, match="can't be verified"):
        completions.prompt_logprobs(answer(), [5, 6, 7])
    with pytest.raises(EngineError, match="can't be read"):
        completions.prompt_logprobs(answer(prompt_logprobs=[None, {"1": {}}, None]), [5, 6, 7])


# A run.


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (answer(token_ids=[1, 512]), "token id 512, and the trainer's model has ids below 512"),
        (answer(token_ids=[], logprobs=None, finish_reason="stop", stop_reason="x"), "'x' ended .* gave no token"),
    ],
)
async def test_a_sample_that_can_not_be_one_is_refused(reply: Any, message: str) -> None:
    class Module:
        class config:  # noqa: N801 - as transformers calls it
            vocab_size = 512

            @classmethod
            def get_text_config(cls) -> Any:
                return cls

    class Ours(FakeWeights):
        def module(self, *, data: bool = True) -> Any:
            return Module

    async with serving() as server, started(server, weights=Ours(), update_weights=False) as engine:
        assert (await engine.generate((1,), Sampling(4), session="a")).ids == (5, 6)
        server.reply = reply
        with pytest.raises(EngineError, match=message):
            await engine.generate((1,), Sampling(4), session="a")


async def test_the_only_model_is_taken_and_a_sample_comes_back() -> None:
    async with serving() as server, started(server, api_key="key") as engine:
        done = await engine.generate((1, 2), Sampling(4), session="a")
        assert (done.ids, done.versions) == ((5, 6), (0, 0))
        assert server.asked[-1][1]["model"] == "tiny"
        assert server.keys == {"Bearer key"}
        with pytest.raises(EngineError, match="more than the 64"):
            await engine.generate((1, 2), Sampling(63), session="a")
        with pytest.raises(EngineError, match="before the temperature"):
            await engine.generate((1, 2), Sampling(4, temperature=0.5), session="a")
        with pytest.raises(EngineError, match="records no sampling masks"):
            await engine.generate((1, 2), Sampling(4, top_k=3, keep_masks=True), session="a")
        with pytest.raises(EngineError, match="no images"):
            await engine.generate((1,), Sampling(4), session="a", media=[object()])


@pytest.mark.parametrize("extension", [False, True])
async def test_weights_go_by_a_folder_and_the_cache_is_emptied(
    weights: FakeWeights, tmp_path: Path, extension: bool
) -> None:
    async with serving() as server, started(server, weights=weights, worker_extension=extension) as engine:
        await engine.update_weights(weights, 5)
        done = await engine.generate((1,), Sampling(4), session="a")
        assert done.versions == (5, 5)
        folder = str(tmp_path)
        wanted = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        if extension:
            wanted = {"method": "toolrl_load_folder", "args": [folder]}
            (known, seed), method = (server.asked[1][1][key] for key in ("args", "method"))
            assert (server.asked[1][0], method, known, seed >= 0) == ("/collective_rpc", "toolrl_setup", None, True)
        # The extension's sampler draws from a generator of its own; a plain server gets a seed for each request.
        assert ("seed" in server.asked[-1][1]) != extension
        updates = [place for place, asked in enumerate(server.asked) if asked == ("/collective_rpc", wanted)]
        assert len(updates) == 2, "at the start and at the update"
        assert all(server.paths()[place + 1] == "/reset_prefix_cache" for place in updates)


async def test_an_update_waits_for_what_is_under_way_and_what_comes_waits_for_it(weights: FakeWeights) -> None:
    async with serving() as server, started(server, weights=weights) as engine:
        server.held = asyncio.Event()
        first = asyncio.ensure_future(engine.generate((1,), Sampling(4), session="a"))
        await until(lambda: engine._under_way)
        before = len(server.asked)
        update = asyncio.ensure_future(engine.update_weights(weights, 1))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(engine.generate((1,), Sampling(4), session="b"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert "/collective_rpc" not in server.paths()[before:]
        assert engine._under_way == 1
        server.held.set()
        assert (await first).versions == (0, 0)
        await update
        assert (await second).versions == (1, 1)
        assert server.paths()[-3:] == ["/collective_rpc", "/reset_prefix_cache", "/v1/completions"]


async def test_cancelled_and_closed_requests_close_their_connections() -> None:
    async with serving() as server, started(server) as engine:
        server.held = asyncio.Event()
        tasks = [asyncio.ensure_future(engine.generate((1,), Sampling(4), session=str(n))) for n in range(3)]
        await until(lambda: server.paths().count("/v1/completions") == 3)
        with pytest.raises(EngineError, match="generating already"):
            await engine.generate((1,), Sampling(4), session="0")
        tasks[0].cancel()
        await engine.close("1")
        await engine.stop()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, EngineError, EngineError]
        await until(lambda: server.cut == 3)
        assert not engine._sessions
        assert not engine._under_way


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (web.Response(status=500, text="out of memory"), "answered 500: out of memory"),
        (web.Response(text="<html>"), "no JSON: <html>"),
        (web.Response(status=302, headers={"Location": "/x"}), "answered 302: nothing"),
    ],
)
async def test_a_servers_fault_is_told(reply: web.Response, message: str) -> None:
    async with serving() as server, started(server) as engine:
        server.reply = reply
        with pytest.raises(EngineError, match=message):
            await engine.generate((1,), Sampling(4), session="a")
