"""Data set `gsm8k` and tool `calc_gsm8k_reward`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import DataError, ToolsetError
from toolrl.protocols import iterate
from toolrl.tools import as_toolset
from toolrl.types import Message, Task, ToolCall, ToolResult
from toolrl_plugin_math.gsm8k import Gsm8k
from toolrl_plugin_math.options import Gsm8kDataOptions, RewardToolOptions
from toolrl_plugin_math.quantity import stated_number
from toolrl_plugin_math.reward_tool import Gsm8kRewardTool
from toolrl_testing import make_build_context, make_episode_context, make_task

CONTEXT = make_build_context(where="data.train")
ROWS = [
    {"question": "How many eggs?", "answer": "16 - 7 = <<16-7=9>>9\n9 * 2 = <<9*2=18>>18\n#### 18"},
    {"question": "How much?", "answer": "#### 1,070,000"},
    {"question": "How cold?", "answer": "#### -5"},
]


def write(path: Path, rows: Sequence[Any] = ROWS) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, **options: Any) -> Gsm8k:
    return Gsm8k(Gsm8kDataOptions(path=str(path), **options), CONTEXT)


class TestData:
    def test_a_task(self, tmp_path: Path) -> None:
        task = read(write(tmp_path / "train.jsonl"), instruction="Think.", environment="calc")[0]
        assert task == Task(
            id="train-0",
            messages=(Message("user", "How many eggs?\n\nThink."),),
            answer="18",
            environment="calc",
            tools_kwargs={"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "18"}}},
            extra={"question": "How many eggs?", "solution": ROWS[0]["answer"]},
        )

    def test_instruction_system_prompt_and_limit(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl")
        assert "####" in read(path)[0].messages[0].content
        source = read(path, instruction="", system_prompt="Be brief.", limit=2)
        assert len(source) == 2
        assert source[1].messages == (Message("system", "Be brief."), Message("user", "How much?"))

    def test_a_folder_with_splits(self, tmp_path: Path) -> None:
        write(tmp_path / "train.jsonl")
        write(tmp_path / "test.jsonl", ROWS[:1])
        assert len(read(tmp_path)) == 3
        assert len(read(tmp_path, split="test")) == 1
        with pytest.raises(DataError, match=r"no file dev.parquet") as caught:
            read(tmp_path, split="dev")
        assert caught.value.where == "data.train"

    def test_parquet_shards(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        for number in range(2):
            name = tmp_path / f"train-0000{number}-of-00002.parquet"
            parquet.write_table(pyarrow.Table.from_pylist(ROWS), name)
        assert [task.answer for task in iterate(read(tmp_path))] == ["18", "1070000", "-5"] * 2

    @pytest.mark.parametrize(
        "row", [{"question": "x"}, {"question": "x", "answer": "18"}, {"question": 1, "answer": "#### 1"}]
    )
    def test_a_bad_row_names_its_place(self, tmp_path: Path, row: Any) -> None:
        path = write(tmp_path / "a.jsonl", [ROWS[0], row])
        with pytest.raises(DataError, match="ending with") as caught:
            read(path)[1]
        assert caught.value.where == f"{path}:2"

    @pytest.mark.parametrize(("split", "count"), [("train", 7473), ("test", 1319)])
    def test_the_public_files(self, split: str, count: int) -> None:
        folder = shared() / "data" / "gsm8k"
        if not folder.is_dir():
            pytest.skip(f"{folder} isn't there; set TOOLRL_SHARED to a folder that holds data/gsm8k/*.jsonl")
        source = read(folder, split=split)
        assert len(source) == count
        for task in iterate(source):
            assert stated_number(task.answer) is not None
            assert stated_number(task.answer) == stated_number(task.extra["solution"])


def shared() -> Path:
    default = Path(__file__).resolve().parents[4] / "shared"
    return Path(os.environ.get("TOOLRL_SHARED", default))


class TestRewardTool:
    def run(self, *answers: Any, truth: Any = "18", **options: Any) -> tuple[list[ToolResult], float | None]:
        tool = Gsm8kRewardTool(RewardToolOptions(**options), CONTEXT)
        toolset = as_toolset(lambda options, context: tool, None, CONTEXT)
        kwargs = {} if truth is None else {"create_kwargs": {"ground_truth": truth}}
        context = make_episode_context(make_task(tools_kwargs={"calc_gsm8k_reward": kwargs}))

        async def episode() -> tuple[list[ToolResult], float | None]:
            await toolset.start()
            async with toolset.open(context.task, context) as session:
                results = [await session.call(ToolCall("calc_gsm8k_reward", {"answer": text})) for text in answers]
                reward = await session.reward()
            await toolset.stop()
            return results, reward

        found = asyncio.run(episode())
        assert not tool._golds
        assert not tool._rewards
        return found

    def test_an_answer_gets_its_worth_and_one_no_better_costs(self) -> None:
        results, reward = self.run("17", "#### 18.0", "18", "17", "18")
        assert [result.text for result in results[:2]] == [
            "Current parsed answer='17' reward=0.0",
            "Current parsed answer='#### 18.0' reward=1.0",
        ]
        assert [result.reward for result in results] == [-0.05, 0.0, -0.05, -0.05, 0.0]
        assert reward == 1.0
        assert self.run("17", penalty=0.5)[0][0].reward == -0.5

    @pytest.mark.parametrize(
        ("answers", "value"),
        [
            (["$18.00"], 1.0),
            ([18], 1.0),
            (["16 + 2 = 18"], 1.0),
            ([""], 0.0),
            (["?"], 0.0),
            (["18", "17"], 0.0),
            ([], 0.0),
        ],
    )
    def test_the_last_answer_counts_as_a_number(self, answers: list[Any], value: float) -> None:
        assert self.run(*answers)[1] == value

    @pytest.mark.parametrize("truth", [None, "many"])
    def test_a_task_without_a_truth_fails_its_episode(self, truth: Any) -> None:
        with pytest.raises(ToolsetError, match="ground_truth"):
            self.run("18", truth=truth)
