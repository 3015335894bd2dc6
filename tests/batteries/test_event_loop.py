"""Nothing that a model, a server or a file sent holds up the event loop: each way in gets the worst of its size.

A heartbeat asks the loop for a turn again and again, and keeps the processor time of the longest step between two
turns, with that of other threads: one that reads JSON holds Python's lock, and the loop stands as well. The measure is
the time in which this machine reads a megabyte of empty lists, so a slow or busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from toolrl import bounded_json
from toolrl.builtin import datasets
from toolrl.errors import ToolError, ToolrlError
from toolrl.tools import schema_keywords, validation
from toolrl.tools.validation import check_arguments
from toolrl.types import ToolSpec
from toolrl_testing import make_build_context

MB = 1 << 20
MOST = 4.0
"""Longest step, in readings of a megabyte of empty lists: half a second, from which on the run warns of a step."""
SIZES = [1, pytest.param(16, marks=pytest.mark.slow)]
"""Megabytes. 16 are the default limit of answers."""
Work = Callable[[], Awaitable[object]]


def fill(piece: str, megabytes: float, end: str = "1]") -> str:
    return "[" + piece * int(megabytes * MB / len(piece)) + end


def answers(megabytes: float) -> dict[str, str]:
    """JSON of one size, each kind slow to read in its own way."""
    return {
        "lists": fill("[],", megabytes),
        "objects": fill('{"type":"text","text":""},', megabytes),
        "numbers": fill("1,", megabytes),
        "strings": fill('"",', megabytes),
        "escapes": fill('"\\\\",', megabytes),
        "a text": json.dumps(["a, [b] " * int(megabytes * MB / 8)]),
        "depth": "[" * int(megabytes * MB),
        "as many lists as are read": "[" + "[]," * (bounded_json.MOST_CONTAINERS - 99) + "1]",
    }


class Heartbeat:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.longest = 0.0

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        async def beat() -> None:
            last = time.process_time()
            while True:
                await asyncio.sleep(0)
                now = time.process_time()
                self.longest, last = max(self.longest, now - last), now

        task = asyncio.create_task(beat())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            await asyncio.sleep(0)
            task.cancel()


@functools.cache
def megabyte_of_lists() -> float:
    text = fill("[],", 1)

    def cost() -> float:
        begin = time.process_time()
        json.loads(text)
        return time.process_time() - begin

    return statistics.median(cost() for _ in range(3))


def longest_step(work: Work, tries: int = 3) -> float:
    """In readings of a megabyte of lists. The best of some tries, since a step may be held up by the machine."""

    async def run() -> float:
        heart = Heartbeat()
        async with heart.beating():
            with contextlib.suppress(ToolError, ToolrlError, ValueError, TypeError):
                await work()
        return heart.longest

    measured = []
    for _ in range(tries):
        measured.append(asyncio.run(run()) / megabyte_of_lists())
        if measured[-1] <= MOST:
            break
    return min(measured)


async def mcp_message(text: str, field: str) -> None:
    messages = pytest.importorskip("toolrl_plugin_mcp.messages")
    message = f'{{"jsonrpc":"2.0","id":1,"result":{{"{field}":{text}}}}}'.encode()
    messages.parse_message(await messages.fit_message(message, 16 * MB + 1000))


async def openenv_message(text: str) -> None:
    wire = pytest.importorskip("toolrl_plugin_openenv.wire")
    wire.read_answer(f'{{"type":"observation","data":{{"observation":{{"x":{text}}},"reward":1}}}}')


async def http_answer(text: str) -> None:
    """An answer to a `JsonClient`: of a search server, a sandbox."""
    client = pytest.importorskip("toolrl_common.http_client")
    body = text.encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 1 << 16):
            writer.write(body[start : start + (1 << 16)])
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with client.JsonClient(f"http://127.0.0.1:{port}/", max_bytes=17 * MB) as asked:
            await asked.post({}, seconds=60)


async def gateway_request(text: str) -> None:
    server = pytest.importorskip("toolrl_plugin_gateway.server")

    class Request:
        async def read(self) -> bytes:
            return text.encode()

    with contextlib.suppress(server.RefusedError):
        await server.read_body(Request())


WAYS: Mapping[str, Callable[[str], Awaitable[object]]] = {
    "a result of an MCP server": lambda text: mcp_message(text, "content"),
    "structured content of an MCP server": lambda text: mcp_message(text, "structuredContent"),
    "an observation of an OpenEnv server": openenv_message,
    "an answer over HTTP": http_answer,
    "a request to the gateway": gateway_request,
}


@pytest.mark.parametrize("megabytes", SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_json_of_others_holds_up_nothing(way: str, megabytes: float) -> None:
    steps = {name: longest_step(lambda text=text: WAYS[way](text)) for name, text in answers(megabytes).items()}  # type: ignore[misc]
    assert {name: step for name, step in steps.items() if step > MOST} == {}


def test_without_the_limit_of_values_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MOST_CONTAINERS", "MOST_VALUES"):
        monkeypatch.setattr(bounded_json, limit, 1 << 62)
    assert longest_step(lambda: openenv_message(fill("[],", 8)), tries=1) > MOST


def bomb(levels: int) -> dict[str, Any]:
    """Each level is checked twice for each of the one above it."""
    definitions: dict[str, Any] = {"l0": {"type": "integer"}}
    for level in range(levels):
        twice = {"$ref": f"#/$defs/l{level}"}
        definitions[f"l{level + 1}"] = {"oneOf": [twice, {"allOf": [twice, {"type": "string"}]}]}
    return {"$defs": definitions, "properties": {"x": {"$ref": f"#/$defs/l{levels}"}}}


CALLS: Mapping[str, tuple[dict[str, Any], Any]] = {
    "references": (bomb(30), "x"),
    "unique objects": ({"properties": {"x": {"type": "array", "uniqueItems": True}}}, [{"a": i} for i in range(3000)]),
    "unique lists": ({"properties": {"x": {"type": "array", "uniqueItems": True}}}, [[i] for i in range(9000)]),
    "an expression": ({"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}, "a" * 40 + "b"),
    "names by expression": ({"properties": {"x": {"patternProperties": {"^(a|a)+$": {}}}}}, {"a" * 40 + "b": 1}),
    "values of a list": ({"properties": {"x": {"enum": [[i] for i in range(9000)]}}}, [9001]),
    "many wrong items": ({"properties": {"x": {"items": {"type": "integer"}}}}, ["a"] * 100_000),
    "contains": ({"properties": {"x": {"contains": {"anyOf": [{"const": i} for i in range(900)]}}}}, [-1] * 9000),
    "depth": ({"$defs": {"l": {"items": {"$ref": "#/$defs/l"}}}, "properties": {"x": {"$ref": "#/$defs/l"}}}, None),
    "a draft of its own": (
        {"properties": {"x": {"$schema": "http://json-schema.org/draft-07/schema#", "uniqueItems": True}}},
        [{"a": i} for i in range(3000)],
    ),
    "a long number": ({"properties": {"x": {"multipleOf": 0.1}}}, 10**4000),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_a_call_hold_up_nothing(name: str) -> None:
    schema, value = CALLS[name]
    if value is None:
        value = []
        for _ in range(300):
            value = [value]
    spec = ToolSpec("tool", "A tool.", {"type": "object", **schema})
    assert longest_step(lambda: check_arguments(spec, {"x": value}, "tool")) <= MOST


@pytest.mark.parametrize("column", ["messages", "prompt", "tools", "answer", "metadata"])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_row_of_a_data_file_holds_up_little(column: str, as_text: bool, tmp_path: Path) -> None:
    """A row is read on the loop, so its bound is that of other JSON: some hundred milliseconds at most."""
    steps = {}
    for name, text in answers(1).items():
        row = {"prompt": '"1 + 1 ="', column: json.dumps(text) if as_text else text}
        path = tmp_path / f"{name}.jsonl"
        path.write_text("{" + ", ".join(f'"{key}": {value}' for key, value in row.items()) + "}\n")

        rows = datasets.jsonl(datasets.FileDatasetOptions(path=str(path)), make_build_context("jsonl"))

        async def read(rows: Any = rows) -> None:
            rows[0]

        steps[name] = longest_step(read)
    assert {name: step for name, step in steps.items() if step > 2 * MOST} == {}


COSTLY_SCHEMAS: Mapping[str, dict[str, Any]] = {
    "references": bomb(14),
    "a choice": {"properties": {"x": {"oneOf": [{"type": "string"}] * 1000}}},
    "a choice of objects": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "enum": [{"a": i} for i in range(500)],
    },
    "many properties": {"properties": {f"p{i}": {"type": "string"} for i in range(500)}},
}


async def start_mcp(tools: list[dict[str, Any]], folder: Path) -> object:
    mcp = pytest.importorskip("toolrl_plugin_mcp.toolset")
    options = pytest.importorskip("toolrl_plugin_mcp.options")
    listed = folder / "tools.json"
    listed.write_text(json.dumps(tools))
    server = {"command": sys.executable, "args": [str(Path(__file__).with_name("costly_tools_server.py")), str(listed)]}
    toolset = mcp.build(options.McpOptions(servers={"costly": server}), make_build_context("mcp"))
    await toolset.start()
    try:
        return toolset.names()
    finally:
        await toolset.stop()


async def start_openenv(tools: list[dict[str, Any]], folder: Path) -> object:
    openenv = pytest.importorskip("toolrl_plugin_openenv.toolset")
    options = pytest.importorskip("toolrl_plugin_openenv.options")
    toolset = openenv.build(options.OpenEnvOptions(url="http://127.0.0.1:9"), make_build_context("openenv"))

    async def listed() -> list[dict[str, Any]]:
        return tools

    toolset._first_look = listed  # An answer of a server is read within a bound: see `openenv_message`.
    await toolset.start()
    try:
        return toolset.names()
    finally:
        await toolset.stop()


@pytest.mark.parametrize("name", COSTLY_SCHEMAS)
@pytest.mark.parametrize("start", [start_mcp, start_openenv])
def test_a_catalogue_of_costly_schemas_holds_up_nothing(
    start: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations = 0
    count = schema_keywords._spend

    def counting(number: int) -> None:
        nonlocal evaluations
        evaluations += number
        count(number)

    monkeypatch.setattr(schema_keywords, "_spend", counting)
    monkeypatch.setattr(validation, "CATALOGUE_EVALUATIONS", 30_000)
    tools = [{"name": f"t{i}", "inputSchema": {"type": "object", **COSTLY_SCHEMAS[name]}} for i in range(100)]
    found: list[object] = []

    async def work() -> None:
        found.append(await start(tools, tmp_path))

    assert longest_step(work) <= MOST
    assert len(found[0]) == 100  # type: ignore[arg-type]
    assert evaluations / len(found) < 50_000


TEXTS = (
    "<tool_call>", "</tool_call>", '<tool_call>{"name": ', "<think>", "</think><think>", "[", "{", '{"a":', '"', "\\",
    "<function=f>", "<parameter=x>", "</function>", "```python\n", "<answer>", "\\boxed{", "<search>", "<code>",
    '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
)  # fmt: skip
"""A turn of 32,000 tokens has some 128 KB. Parsers run on the loop: theirs is a bound by linear time."""


@pytest.mark.parametrize("kilobytes", [128, pytest.param(512, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["qwen/hermes", "qwen/qwen3_coder", "areal/areal_tir", "rlfactory/rlfactory"])
def test_the_text_of_a_turn_holds_up_little(name: str, kilobytes: int) -> None:
    from toolrl.parsing.flags import EndFlags
    from toolrl.plugins.registry import load_registry

    found = load_registry().get("parsers", name).component
    model = found.load_options()
    parser = found.load()(model() if model is not None else None, make_build_context())
    flags = EndFlags(("answer", "boxed"))

    async def read(piece: str) -> None:
        text = piece * (kilobytes * 1024 // len(piece))
        flags.read(parser.parse(text, tools=(), finish="stop"), text, stopped_by=None)

    steps = {piece: longest_step(lambda piece=piece: read(piece)) for piece in TEXTS}  # type: ignore[misc]
    assert {piece: step for piece, step in steps.items() if step > MOST * kilobytes / 128} == {}
