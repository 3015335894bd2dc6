"""Tools of the real library, in sessions as the rollout opens them."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ConfigError, ToolrlError, ToolsetError
from toolrl.tools import as_toolset
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolBoxSession, ToolEntry
from toolrl.types import Media, Message, Task, ToolCall, ToolResult
from toolrl_plugin_qwen_agent import library
from toolrl_plugin_qwen_agent.options import QwenAgentOptions
from toolrl_plugin_qwen_agent.toolset import build
from toolrl_testing.fakes import make_build_context, make_episode_context, make_task

pytestmark = pytest.mark.skipif(importlib.util.find_spec("qwen_agent") is None, reason="qwen_agent isn't installed")

TOOLS = """
import os
import threading
import time

from qwen_agent.llm.schema import ContentItem
from qwen_agent.tools.base import BaseTool, BaseToolWithFileAccess, ToolServiceError, register_tool

GATE = threading.Event()


@register_tool("our_weather")
class Weather(BaseTool):
    description = "给出天气"
    parameters = [{"name": "city", "type": "str", "description": "城市", "required": True}]

    def call(self, params, **kwargs):
        args = self._verify_json_format_args(params)
        return {"city": args["city"], "unit": self.cfg.get("unit", "F"), "day": kwargs.get("day")}


class Chinese(Weather):
    name = "天气"


class Counter(BaseTool):
    name = "counter"
    description = "Counts its calls."
    parameters = {"type": "object", "properties": {}, "required": []}

    def __init__(self, cfg=None):
        super().__init__(cfg)
        self.calls = 0

    def call(self, params):
        self.calls += 1
        return str(self.calls)


class Failing(BaseTool):
    name = "failing"
    description = "Fails."
    parameters = [{"name": "how", "type": "string", "required": True}]

    def call(self, params, **kwargs):
        how = self._verify_json_format_args(params)["how"]
        if how == "service":
            raise ToolServiceError(code="503", message="busy")
        if how == "assert":
            assert how == "other"
        if how == "value":
            raise ValueError("no good")
        return {}["missing"]


class Slow(BaseTool):
    name = "slow"
    description = "Waits until the gate opens."
    parameters = [{"name": "wait", "type": "bool", "required": True}]

    def call(self, params, **kwargs):
        if self._verify_json_format_args(params)["wait"]:
            GATE.wait(60)
        return "done"


class Painter(BaseToolWithFileAccess):
    name = "painter"
    description = "Paints."
    parameters = [{"name": "color", "type": "string", "required": True}]

    def call(self, params, files=None, **kwargs):
        super().call(params, files)
        from PIL import Image

        os.makedirs(self.work_dir, exist_ok=True)
        path = os.path.join(self.work_dir, "painted.png")
        Image.new("RGB", (8, 8), self._verify_json_format_args(params)["color"]).save(path)
        return [ContentItem(text=" ".join(sorted(os.listdir(self.work_dir)))), ContentItem(image=path)]


class Broken(BaseTool):
    name = "broken"
    description = "Can't be made."

    def __init__(self, cfg=None):
        super().__init__(cfg)
        raise OSError("no model here")

    def call(self, params, **kwargs):
        return ""


class Later(BaseTool):
    name = "later"
    description = "Is async."

    async def call(self, params, **kwargs):
        return ""
"""


@pytest.fixture
def tools_py(tmp_path: Path) -> str:
    # A name of its own for each test: the library refuses to register a name twice, and files are imported once.
    file = tmp_path / "tools.py"
    name = "w" + "".join(filter(str.isalnum, str(tmp_path)))[-40:]
    file.write_text(TOOLS.replace("our_weather", name), encoding="utf-8")
    return str(file)


def imported(tools_py: str) -> Any:
    """The module of the tools."""
    return library.in_thread(lambda: (library.load(), library.import_registering(tools_py, "x"))[1])


@asynccontextmanager
async def a_box(policy: PolicyOptions | None = None, *, vision: bool = False, **options: Any) -> AsyncIterator[ToolBox]:
    context = make_build_context("qwen_agent")
    if vision:
        context = replace(context, processor=object())
    toolset = as_toolset(build, QwenAgentOptions.model_validate(options), context)
    box = ToolBox([ToolEntry("qwen_agent", toolset, policy=policy or PolicyOptions())])
    await box.start()
    try:
        yield box
    finally:
        await box.stop()


def opened(box: ToolBox, number: int = 0, task: Task | None = None) -> Any:
    context = replace(make_episode_context(task or make_task()), episode_id=f"episode-{number}")
    return box.open(context.task, context)


async def ask(session: ToolBoxSession, name: str, **arguments: Any) -> ToolResult:
    (record,) = await session.answer([ToolCall(name, arguments)])
    return record.result


def start_error(**options: Any) -> ToolrlError:
    """What starting raises."""

    async def run() -> None:
        async with a_box(**options):
            pass

    with pytest.raises(ToolrlError) as raised:
        asyncio.run(run())
    return raised.value


def in_session(work: Any, *, task: Task | None = None, policy: PolicyOptions | None = None, **options: Any) -> Any:
    """What `work(session)` gives."""

    async def run() -> Any:
        async with a_box(policy, **options) as box, opened(box, task=task) as session:
            return await work(session)

    return asyncio.run(run())


def test_storage_of_many_episodes() -> None:
    async def episode(box: ToolBox, number: int) -> str:
        async with opened(box, number) as session:
            await ask(session, "storage", operate="put", key="/a/b", value=f"值 {number}")
            await asyncio.sleep(0)
            return (await ask(session, "storage", operate="scan", key="/")).text

    async def run() -> Sequence[str]:
        async with a_box(tools=["storage"]) as box:
            return await asyncio.gather(*(episode(box, number) for number in range(64)))

    assert asyncio.run(run()) == [f"/a/b: 值 {number}" for number in range(64)]


def test_storage_keeps_inside() -> None:
    async def work(session: ToolBoxSession) -> list[ToolResult]:
        keys, operations = ("../x", "//etc/passwd", "a/../../x", "/../x", "a\x00b"), ("get", "put", "delete", "scan")
        return [await ask(session, "storage", operate=it, key=key, value="x") for key in keys for it in operations]

    for result in in_session(work, tools=["storage"]):
        assert result.error == "tool_error"
        assert "out of the storage" in result.text or "null characters" in result.text


def test_documents_are_read_from_given_folders_alone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "doc.txt").write_text("Oslo is the capital of Norway.", encoding="utf-8")
    (tmp_path / "out.txt").write_text("secret", encoding="utf-8")
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "out.txt")

    async def work(session: ToolBoxSession) -> list[ToolResult]:
        given = ["doc.txt", str(tmp_path / "in" / "doc.txt"), "../out.txt", str(tmp_path / "out.txt"), "link.txt",
                 (tmp_path / "out.txt").as_uri(), "http://127.0.0.1:9/x.txt", "x" * 5000, "a\x00"]  # fmt: skip
        results = [await ask(session, "simple_doc_parser", url=it) for it in given]
        return [*results, await ask(session, "doc_parser", url="doc.txt")]

    first, second, *refused, chunked = in_session(
        work, tools=["simple_doc_parser", "doc_parser"], folders=[str(tmp_path / "in")]
    )
    assert first.text == second.text == "Oslo is the capital of Norway."
    assert json.loads(chunked.text)["raw"][0]["content"] == "Oslo is the capital of Norway."
    for result in refused:
        assert result.error == "tool_error"
        assert "secret" not in result.text
    assert "can't fetch addresses" in refused[4].text


def test_retrieval(tmp_path: Path) -> None:
    pytest.importorskip("rank_bm25", reason="pip install 'toolrl-plugin-qwen-agent[rag]'")
    (tmp_path / "doc.txt").write_text("Oslo is the capital of Norway.", encoding="utf-8")

    async def work(session: ToolBoxSession) -> list[ToolResult]:
        good = await ask(session, "retrieval", query="capital", files=["doc.txt"])
        return [good, await ask(session, "retrieval", query="capital", files=["doc.txt", "/etc/passwd"])]

    good, bad = in_session(work, tools=["retrieval"], folders=[str(tmp_path)])
    assert json.loads(good.text)[0]["text"] == ["Oslo is the capital of Norway."]
    assert bad.error == "tool_error"


def test_searches_take_docs_from_the_task() -> None:
    task = replace(
        make_task(), tools_kwargs={"front_page_search": {"execute_kwargs": {"docs": ["Oslo is in Norway."]}}}
    )

    async def work(session: ToolBoxSession) -> ToolResult:
        return await ask(session, "front_page_search", query="Oslo")

    assert "Oslo is in Norway." in in_session(work, task=task, tools=["front_page_search"]).text


def test_classes_of_a_file(tools_py: str) -> None:
    task = replace(make_task(), tools_kwargs={"weather": {"execute_kwargs": {"day": 1}}})

    async def work(session: ToolBoxSession) -> tuple[Any, ...]:
        return (
            session.specs(),
            await ask(session, "weather", city="奥斯陆"),
            await ask(session, "天气", city="x"),
            await ask(session, "weather"),
        )

    tools = [{"name": f"{tools_py}:Chinese", "as": "weather", "unit": "C"}]
    (spec,), good, own_name, bad = in_session(work, task=task, tools=tools)
    assert (spec.name, spec.description, spec.parameters["required"]) == ("weather", "给出天气", ["city"])
    assert json.loads(good.text) == {"city": "奥斯陆", "unit": "C", "day": 1}
    assert own_name.error is None
    assert bad.error == "bad_arguments"


def test_registered_by_an_import(tools_py: str) -> None:
    name = imported(tools_py).Weather.name

    async def work(session: ToolBoxSession) -> ToolResult:
        return await ask(session, name, city="x")

    for _ in range(2):  # The second toolset finds it registered.
        assert in_session(work, tools=[name], imports=[tools_py]).error is None


@pytest.mark.parametrize(
    ("instances", "expected"), [("episode", ["1", "2", "1", "2"]), ("process", ["1", "2", "3", "4"])]
)
def test_instances(tools_py: str, instances: str, expected: Sequence[str]) -> None:
    async def run() -> list[str]:
        texts = []
        async with a_box(tools=[f"{tools_py}:Counter"], instances=instances) as box:
            for number in range(2):
                async with opened(box, number) as session:
                    texts += [(await ask(session, "counter")).text for _ in range(2)]
        return texts

    assert asyncio.run(run()) == expected


def test_create_kwargs(tools_py: str) -> None:
    task = replace(make_task(), tools_kwargs={"weather": {"create_kwargs": {"unit": "K"}}})
    tools = [{"name": f"{tools_py}:Chinese", "as": "weather", "unit": "C"}]

    async def work(session: ToolBoxSession) -> ToolResult:
        return await ask(session, "weather", city="x")

    assert json.loads(in_session(work, task=task, tools=tools).text)["unit"] == "K"
    with pytest.raises(ToolsetError, match="instances: episode"):
        in_session(work, task=task, tools=tools, instances="process")


def test_errors(tools_py: str) -> None:
    async def work(session: ToolBoxSession) -> dict[str, ToolResult]:
        return {how: await ask(session, "failing", how=how) for how in ("service", "assert", "value", "key", "\ud800")}

    results: Mapping[str, ToolResult] = in_session(work, tools=[f"{tools_py}:Failing"])
    assert "Error code: 503. Error message: busy" in results["service"].text
    assert results["assert"].text.endswith("a check failed.")
    assert results["value"].text == "ValueError: no good"
    assert [result.error for result in results.values()] == ["tool_error"] * 3 + ["crash", "bad_arguments"]


def test_images_and_files(tools_py: str) -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (64, 32), "blue")
    task = replace(make_task(), messages=(Message("user", "look", media=(Media("image", image),)),))

    async def work(session: ToolBoxSession) -> list[ToolResult]:
        first = await ask(session, "painter", color="red")
        zoomed = await ask(session, "image_zoom_in_tool", bbox_2d=[0, 0, 500, 500], label="x", img_idx=1)
        return [first, await ask(session, "painter", color="green"), zoomed]

    tools = [f"{tools_py}:Painter", "image_zoom_in_tool"]
    first, second, zoomed = in_session(work, task=task, vision=True, tools=tools)
    # The image of the prompt was copied into the tool's folder, and its own of the first call is still there.
    assert first.text == "0-0.png painted.png"
    assert [item.data.getpixel((0, 0)) for item in (*first.media, *second.media)] == [(255, 0, 0), (0, 128, 0)]
    assert zoomed.media[0].data.getpixel((0, 0)) == (255, 0, 0)
    told = in_session(work, task=task, tools=tools)[0]
    assert told.media == ()
    assert "[image: " in told.text


def test_a_call_that_hangs(tools_py: str) -> None:
    """Its tool is busy until it returns; others work on."""
    gate = imported(tools_py).GATE
    gate.clear()

    async def work(session: ToolBoxSession) -> list[ToolResult]:
        late = await ask(session, "slow", wait=True)
        busy = await ask(session, "slow", wait=False)
        other = await ask(session, "storage", operate="put", key="a", value="b")
        gate.set()
        while (after := await ask(session, "slow", wait=False)).error is not None:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.01)
        return [late, busy, other, after]

    results = in_session(work, tools=[f"{tools_py}:Slow", "storage"], policy=PolicyOptions(timeout=0.5))
    assert [it.error for it in results] == ["timeout", "unavailable", None, None]


def test_what_cannot_start(tools_py: str) -> None:
    error = start_error(tools=["storage", "storag"])
    assert isinstance(error, ConfigError)
    assert "no tool is registered as 'storag'" in str(error)
    assert error.where == "tests.qwen_agent.options.tools[1]"
    assert "no model here" in str(start_error(tools=[f"{tools_py}:Broken"]))
    assert "has no 'Nothing'" in str(start_error(tools=[f"{tools_py}:Nothing"]))
    assert "no subclass of" in str(start_error(tools=[f"{tools_py}:GATE"]))
    assert "is async" in str(start_error(tools=[f"{tools_py}:Later"]))
    assert "two tools are called 'storage'" in str(start_error(tools=["storage", "storage"]))
    assert "Give it another name with `as`" in str(start_error(tools=[f"{tools_py}:Chinese"]))
    assert "no Python file" in str(start_error(tools=["nothing_here.py:X"]))
    assert "can't be imported: ModuleNotFoundError" in str(start_error(tools=["no_such_module_here:X"]))
    assert "with the rights of the run" in str(start_error(tools=["qwen_agent.tools.python_executor:PythonExecutor"]))


def test_code_interpreter() -> None:
    """In its container, where there is Docker."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        assert "CodeInterpreter can't be made" in str(start_error(tools=["code_interpreter"]))
        return

    async def work(session: ToolBoxSession) -> list[str]:
        return [(await ask(session, "code_interpreter", code=code)).text for code in ("x = 41", "print(x + 1)")]

    assert "42" in in_session(work, tools=["code_interpreter"], policy=PolicyOptions(timeout=300))[1]
    assert [thread.name for thread in threading.enumerate() if "HBChannel" in thread.name] == []


def test_a_code_interpreter_without_docker_says_what_there_is_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = library.in_thread(library.load)

    def there_is_none() -> None:
        raise RuntimeError("Docker daemon is not running")

    monkeypatch.setattr(sys.modules[tools.CodeInterpreter.__module__], "_check_docker_availability", there_is_none)
    said = str(start_error(tools=["code_interpreter"]))
    assert "Docker daemon is not running" in said
    assert "python/code_interpreter" in said


def test_nothing_stays_behind(tools_py: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.in_thread(library.load)  # The workspace of the process stays till its end.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    monkeypatch.chdir(tmp_path)
    handlers = [signal.getsignal(it) for it in (signal.SIGINT, signal.SIGTERM)]

    async def run() -> tuple[list[str], list[str]]:
        async with a_box(tools=["storage", f"{tools_py}:Painter"]) as box:
            async with opened(box) as session:
                await ask(session, "storage", operate="put", key="a", value="b")
                await ask(session, "painter", color="red")
                during = [it.name for it in (tmp_path / "temp").glob("toolrl-qwen-agent-*/*")]
            return during, [it.name for it in (tmp_path / "temp").glob("toolrl-qwen-agent-*/episode*")]

    during, after = asyncio.run(run())
    assert "episode-0" in during
    assert after == []
    assert list((tmp_path / "temp").iterdir()) == []
    assert sorted(os.listdir(tmp_path)) == ["temp", "tools.py"]  # noqa: PTH208 - names are what is compared
    assert [signal.getsignal(it) for it in (signal.SIGINT, signal.SIGTERM)] == handlers
