"""verl's tools run as they are written, one instance an episode, and keep nothing of one episode for another."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

import pytest
import verl_guide_tools
from verl_harness import GEO3K, YOUR_TOOL, Make, kwargs, play, started, task_with

from toolrl.errors import ConfigError, ToolsetError
from toolrl.types import Media, Message, ToolCall
from toolrl_plugin_verl.adapter import agent_data_of
from toolrl_plugin_verl.tools.schemas import OpenAIFunctionToolSchema
from toolrl_testing import make_episode_context, make_task


def test_geo3k_tool_scores_and_takes_off_for_no_improvement(make_toolset: Make) -> None:
    calls = [("calc_geo3k_reward", {"answer": answer}) for answer in ("5", "\\sqrt{12}", "2\\sqrt{3}")]
    given = kwargs("calc_geo3k_reward", ground_truth="2\\sqrt{3}")
    played = play(make_toolset(f"tools:\n{GEO3K}"), *calls, kwargs=given)
    assert played.results[1].text == "Current parsed answer='\\\\sqrt{12}' reward=1.0"
    assert [result.reward for result in played.results] == [-0.05, 0.0, -0.05]
    assert [value for _, value in played.rewards] == [1.0]


FIELDS = """
from verl_guide_tools import LatestTool
from toolrl_plugin_verl.tools.schemas import ToolResponse

class Fields(LatestTool):
    async def create(self, instance_id, **kwargs):
        return instance_id
    async def execute(self, instance_id, parameters, agent_data=None):
        agent_data.extra_fields["count"] = agent_data.extra_fields.get("count", 0) + 1
        agent_data.extra_fields.update(found=("a", 1.5), handle=object(), address="http://x?key=" + self.config["key"])
        agent_data.extra_fields[3] = "three"
        return ToolResponse(text="ok")
"""


def test_extra_fields_become_notes(
    make_toolset: Make, tmp_path: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what the tool YAML took from the environment."""
    monkeypatch.setenv("VERL_TEST_KEY", "hush-hush")
    (tmp_path / "field_tools.py").write_text(FIELDS)

    async def run() -> Any:
        task, context = task_with()
        yaml = "tools:\n  - class_name: field_tools.Fields\n    config: {key: '${oc.env:VERL_TEST_KEY}'}\n"
        toolset = make_toolset(yaml, python_path=[str(tmp_path)])
        async with started(toolset) as box:
            async with box.open(task, context) as session:
                for _ in range(2):
                    await session.answer([ToolCall("latest", {})])
                assert context.notes == {}  # The tool's own until it is released.
            async with box.open(*task_with()):
                pass
            return context.notes

    assert asyncio.run(run()) == {"extra_fields": {"count": 2, "found": ["a", 1.5], "address": "http://x?key=…"}}
    assert "extra_fields['handle'] is object and doesn't reach the reward" in caplog.text
    assert caplog.text.count("extra_fields[3] is str") == 1


def test_search_tool_asks_the_server(retriever: str, make_toolset: Make) -> None:
    config = f"{{type: native, retrieval_service_url: '{retriever}', topk: 2, num_workers: 4, rate_limit: 2}}"
    yaml = f"tools:\n  - class_name: verl.tools.search_tool.SearchTool\n    config: {config}\n"

    async def run() -> tuple[Any, Any]:
        task, context = task_with(kwargs("search", ground_truth="x", question="?", data_source="searchR1_nq"))
        async with started(make_toolset(yaml)) as box, box.open(task, context) as session:
            calls = [ToolCall("search", {"query_list": [f"q{n}", "other"]}) for n in range(8)]
            return await session.answer(calls), await session.rewards()

    records, rewards = asyncio.run(run())
    assert [record.result.error for record in records] == [None] * 8
    shown = json.loads(records[3].result.text)["result"]
    assert shown.startswith("Doc 1 (Title: About q3)\nText 0\n\nDoc 2 (Title: About q3)\nText 1\n---\nDoc 1")
    assert records[3].result.metrics["total_results"] == 4
    assert rewards == []  # Its calc_reward gives texts.


GREEDY = """
from verl_guide_tools import LatestTool

class Greedy(LatestTool):
    async def create(self, instance_id=None, items=None, **kwargs):
        self.items = items
        return instance_id
    async def execute(self, instance_id, parameters, **kwargs):
        return self.items.pop() + kwargs["agent_data"].tools_kwargs["latest"]["create_kwargs"]["items"].pop()
    async def release(self, instance_id, **kwargs):
        pass
"""


async def test_kwargs_that_a_tool_changes_stay_as_they_are_for_others(make_toolset: Make, tmp_path: Any) -> None:
    (tmp_path / "greedy_tools.py").write_text(GREEDY)
    task = make_task(tools_kwargs=kwargs("latest", items=["only"]))
    yaml = "tools:\n  - class_name: greedy_tools.Greedy\n"
    async with started(make_toolset(yaml, python_path=[str(tmp_path)])) as box:
        for _ in range(2):
            async with box.open(task, make_episode_context(task)) as session:
                (record,) = await session.answer([ToolCall("latest", {})])
                assert record.result.text == "onlyonly"


def test_an_episode_that_fails_or_is_cancelled_is_rewarded_and_released(make_toolset: Make) -> None:
    async def run() -> None:
        task, context = task_with(kwargs("your_tool", ground_truth="4"))
        async with started(make_toolset(YOUR_TOOL)) as box:
            with pytest.raises(RuntimeError, match="lost"):
                async with box.open(task, context) as session:
                    await session.answer([ToolCall("your_tool", {"answer": "4"})])
                    raise RuntimeError("lost")
            entered = asyncio.Event()

            async def cancelled() -> None:
                async with box.open(task, context):
                    entered.set()
                    await asyncio.Event().wait()

            running = asyncio.create_task(cancelled())
            await entered.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    stages = [stage for stage, _ in verl_guide_tools.LOG]
    assert stages == ["create", "execute", "calc_reward", "calc_reward", "release", "create", "calc_reward", "release"]


BLOCKING = """
import threading
from verl_guide_tools import LatestTool

GO = threading.Event()

class Blocking(LatestTool):
    async def create(self, instance_id, **kwargs):
        return instance_id
    async def execute(self, instance_id, parameters, **kwargs):
        GO.wait()
        return "done"
"""


def test_a_tool_that_blocks_does_not_hold_up_the_event_loop(make_toolset: Make, tmp_path: Any) -> None:
    (tmp_path / "blocking_tools.py").write_text(BLOCKING)

    async def run() -> str:
        task, context = task_with()
        toolset = make_toolset("tools:\n  - class_name: blocking_tools.Blocking\n", python_path=[str(tmp_path)])
        async with started(toolset) as box, box.open(task, context) as session:
            import blocking_tools

            answering = asyncio.create_task(session.answer([ToolCall("latest", {})]))
            for _ in range(100):
                await asyncio.sleep(0)  # This goes on while the call blocks.
            blocking_tools.GO.set()
            return (await answering)[0].result.text

    assert asyncio.run(run()) == "done"


async def test_an_id_that_two_episodes_get_is_refused(make_toolset: Make, tmp_path: Any) -> None:
    (tmp_path / "one_id_tools.py").write_text(
        "from verl_guide_tools import LatestTool\n"
        "class OneId(LatestTool):\n"
        "    async def create(self, instance_id, **kwargs):\n"
        "        return 'same'\n"
    )
    task, context = task_with()
    toolset = make_toolset("tools:\n  - class_name: one_id_tools.OneId\n", python_path=[str(tmp_path)])
    async with started(toolset) as box:
        async with box.open(task, context):
            with pytest.raises(ToolsetError, match="another episode's instance"):
                async with box.open(task, context):
                    pass
        async with box.open(task, context):  # One after the other is fine.
            pass


async def test_a_tool_that_gets_no_id_may_give_the_same_each_time(make_toolset: Make, tmp_path: Any) -> None:
    """A stateless tool of 0.9.1: there each call has an instance of its own."""
    (tmp_path / "stateless_tools.py").write_text(
        "from verl_guide_tools import LatestTool\n"
        "class Stateless(LatestTool):\n"
        "    async def create(self, create_kwargs=None):\n"
        "        return 'instance_1', None\n"
        "    async def execute(self, instance_id, parameters, **kwargs):\n"
        "        return 'OK'\n"
    )
    toolset = make_toolset("tools:\n  - class_name: stateless_tools.Stateless\n", python_path=[str(tmp_path)])
    task, context = task_with()
    async with started(toolset) as box, box.open(task, context) as one, box.open(task, context) as other:
        records = [(await session.answer([ToolCall("latest", {})]))[0] for session in (one, other)]
    assert [record.result.text for record in records] == ["OK"] * 2


FUNCTIONS = '''
from typing import Optional
from toolrl_plugin_verl.tools.schemas import ToolResponse
from toolrl_plugin_verl.tools.function_tool import function_tool

@function_tool
def plain(text: str) -> str:
    """Says it again.

    Args:
        text: What is said.
    """
    return text

@function_tool("pair")
async def _pair(text: str, reward: Optional[float] = None):
    """Gives a reward."""
    return {"said": text}, reward

@function_tool("triple", schema={"type": "function", "function": {"name": "x", "description": "Three.",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}})
def triple(n=0):
    return ToolResponse(text=str(n), image=["cat.png"]), 1, {"n": n, "word": "w"}

def not_a_tool(text):
    return text
'''


def test_function_tools_and_what_they_return(make_toolset: Make) -> None:
    calls = [
        ("plain", {"text": "hi"}),
        ("pair", {"text": "é", "reward": 0.25}),
        ("pair", {"text": "x"}),
        ("triple", {"n": 3}),
        ("triple", {"m": 3}),
    ]
    played = play(make_toolset(functions=FUNCTIONS), *calls)
    assert [spec.name for spec in played.specs] == ["plain", "pair", "triple"]
    assert played.specs[0].parameters["properties"]["text"]["description"] == "What is said."
    assert played.specs[2].description == "Three."
    plain, pair, bare, triple, wrong = played.results
    assert (plain.text, plain.reward, plain.metrics) == ("hi", 0.0, {"tool_reward": 0.0})
    assert (pair.text, pair.reward) == ('{"said": "é"}', 0.25)
    assert bare.reward == 0.0
    assert (triple.text, triple.reward, triple.metrics) == ("3", 1.0, {"n": 3.0, "tool_reward": 1.0})
    assert [(item.kind, item.data) for item in triple.media] == [("image", "cat.png")]
    assert wrong.error == "bad_arguments"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\n", "registers no function"),
        ("import verl.trainer\n", "can't be imported: ModuleNotFoundError"),
        ("import sys; sys.exit(1)\n", "can't be imported: SystemExit"),
    ],
)
def test_a_file_of_functions_that_can_not_be_used(source: str, message: str, make_toolset: Make) -> None:
    with pytest.raises(ConfigError, match=message):
        make_toolset(functions=source)


def test_agent_data_holds_the_tasks_images_as_pictures() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow isn't installed: pip install 'toolrl[images]'")
    red, blue = image.new("RGB", (4, 3), "red"), image.new("RGB", (2, 2), "blue")
    media = (Media("image", red), Media("video", "clip.mp4"))
    context = make_episode_context(replace(make_task(), messages=(Message("user", "<image><video>", media=media),)))
    data = agent_data_of(context)
    assert agent_data_of(context) is data
    for expected in ([(4, 3)], [(4, 3), (2, 2)]):
        assert [picture.size for picture in data.image_data] == expected
        data.answered((Media("image", blue), Media("video", "other.mp4")))
    assert data.video_data == ["clip.mp4"]
    assert data.messages == [{"role": "user", "content": "<image><video>"}]


FRAMES = """
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

FRAMES, GIVEN = {}, []


class Tool(BaseTool):
    def get_openai_tool_schema(self):
        function = {"name": type(self).__name__, "description": "Frames.", "parameters": {"type": "object"}}
        return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})


class Cut(Tool):
    async def create(self, instance_id=None, **kwargs):
        GIVEN.append((instance_id, kwargs))
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        FRAMES[instance_id] = ["first"]
        return ToolResponse(text=kwargs["agent_data"].request_id), None, None


class Look(Tool):
    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text=f"{instance_id}: {FRAMES[instance_id]}"), None, None


class Whole(Tool):
    async def create(self, instance_id=None, **kwargs):
        self.start = kwargs["create_kwargs"]["start"]
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        return str(self.start)
"""


async def test_tools_of_an_episode_have_one_instance_id(make_toolset: Make, tmp_path: Any) -> None:
    """As verl's request id: what one tool keeps under it, another finds. `create` gets what verl's gives it."""
    (tmp_path / "frame_tools.py").write_text(FRAMES)
    yaml = "tools:\n" + "".join(f"  - class_name: frame_tools.{name}\n" for name in ("Cut", "Look", "Whole"))
    given = {**kwargs("Cut", video="v.mp4"), **kwargs("Whole", start=7)}
    async with started(make_toolset(yaml, python_path=[str(tmp_path)])) as box:

        async def episode() -> list[str]:
            async with box.open(*task_with(given)) as session:
                records = [(await session.answer([ToolCall(name, {})]))[0] for name in ("Cut", "Look", "Whole")]
            return [record.result.text for record in records]

        episodes = await asyncio.gather(*(episode() for _ in range(4)))
    ids = {own for own, _, _ in episodes}
    assert len(ids) == 4
    assert all((look, start) == (f"{own}: ['first']", "7") for own, look, start in episodes)
    given = {"video": "v.mp4", "create_kwargs": {"video": "v.mp4"}}
    assert dict(sys.modules["frame_tools"].GIVEN) == dict.fromkeys(ids, given)


SCHEMA = OpenAIFunctionToolSchema.model_validate(
    {
        "type": "function",
        "function": {
            "name": "your_tool",
            "description": "Takes an answer.",
            "parameters": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
        },
    }
)


def test_the_guides_lifecycle_test_passes() -> None:
    async def lifecycle() -> None:
        tool = verl_guide_tools.YourTool(config={}, tool_schema=SCHEMA)
        assert tool.name == "your_tool"
        assert tool.get_openai_tool_schema().function.parameters.required == ["answer"]
        instance_id = await tool.create(ground_truth="42")
        assert isinstance(instance_id, str)
        response, reward, metrics = await tool.execute(instance_id, {"answer": "42"})
        assert (response, reward, metrics["calls"]) == ("call 1: 42", 0.5, 1)
        assert await tool.calc_reward(instance_id) == 1.0
        await tool.release(instance_id)
        assert not tool._instance_dict

    asyncio.run(lifecycle())


def test_step_rewards_can_be_left_to_the_reward_function(make_toolset: Make) -> None:
    given = kwargs("your_tool", ground_truth="4")
    (result,) = play(make_toolset(YOUR_TOOL, step_rewards=False), ("your_tool", {"answer": "4"}), kwargs=given).results
    assert (result.reward, result.metrics["tool_reward"]) == (None, 0.5)
