"""Geometry3K: which answers are right, what the tool and the reward give, how the files are read and written."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.errors import DataError, RewardError, ToolsetError
from toolrl.protocols import BuildContext, EpisodeContext, iterate
from toolrl.tools.toolset import as_toolset
from toolrl.types import Episode, ToolCall
from toolrl_plugin_geo3k.command import Data
from toolrl_plugin_geo3k.dataset import Geo3k
from toolrl_plugin_geo3k.judge import GeometryJudge, bare
from toolrl_plugin_geo3k.options import Geo3kDataOptions, Geo3kRewardOptions, Geo3kToolOptions
from toolrl_plugin_geo3k.reward import Geo3kReward
from toolrl_plugin_geo3k.tool import NAME, GeometryTool
from toolrl_testing import make_task
from toolrl_testing.fakes import make_episode

CONTEXT = BuildContext("geo3k")
SLOW = 60.0
"""Seconds for an answer, so that a busy machine judges it, too."""


@pytest.fixture(scope="module")
def judge() -> Iterator[GeometryJudge]:
    made = GeometryJudge(1, SLOW)
    yield made
    made.close()


RIGHT = [
    ("12.5", "12.5"), ("12.50", "12.5"), ("\\boxed{12.5}", "12.5"), ("12.5 cm", "12.5"), ("12.5\\text{ cm}^2", "12.5"),
    ("x = 12.5", "12.5"), ("$x=12.5$", "12.5"), ("70^\\circ", "70"), ("70°", "70"), ("70 degrees", "70"),
    ("m \\angle ABC = 70^{\\circ}", "70"), ("\\approx 12.5", "12.5"), ("2\\sqrt{221}", "2 \\sqrt { 221 }"),
    ("\\sqrt{884}", "2 \\sqrt { 221 }"), ("\\frac{25}{2}", "12.5"), ("\\frac { 2 5 } { 2 }", "\\frac{25}{2}"),
    ("\\boxed{12\\,\\text{square units}}", "12"), ("\\theta = 45", "45"), ("I think \\boxed{3}, no, \\boxed{4}", "4"),
    ("48 \\pi", "48 \\pi"), ("12 mm", "12"), ("0.00000012", "1.2 \\times 10^{-7}"), ("5\\mathrm{cm}", "5"),
]  # fmt: skip
WRONG = [
    ("12.6", "12.5"), ("", "12.5"), ("\\boxed{}", "12.5"), ("cm", "12.5"), ("12.5 13", "12"),
    ("\\sqrt{885}", "2 \\sqrt{221}"), ("\\boxed{4}, no, \\boxed{3}", "4"), ("twelve", "12"), ("7", "70"),
    ("0.00000034", "0.00000012"), ("0.0", "0.00000012"), ("6.626 \\times 10^{-34}", "9.109 \\times 10^{-31}"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "gold"), RIGHT)
def test_right_answers(judge: GeometryJudge, answer: str, gold: str) -> None:
    assert asyncio.run(judge.right(answer, gold))


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_wrong_answers(judge: GeometryJudge, answer: str, gold: str) -> None:
    assert not asyncio.run(judge.right(answer, gold))


def test_an_answer_that_never_ends_is_wrong() -> None:
    judge = GeometryJudge(1, 0.5)
    try:
        assert not asyncio.run(judge.right("9^{9^{9^{9}}}", "4"))
    finally:
        judge.close()


def test_a_ground_truth_that_is_no_mathematics_is_told(judge: GeometryJudge) -> None:
    with pytest.raises(RewardError, match="can't be read as mathematics"):
        asyncio.run(judge.right("4", "°"))


@given(st.text(max_size=40))
def test_taking_off_units_never_fails_and_leaves_something(text: str) -> None:
    made = bare(text)
    assert len(made) <= len(text)
    assert bare(f"{7}{' cm'}") == "7"


# The tool.


def opened(toolset: Any, gold: Any = "12.5", episode: str = "e") -> Any:
    task = make_task(tools_kwargs={NAME: {"create_kwargs": {"ground_truth": gold}}})
    return toolset.open(task, EpisodeContext(episode, task, random.Random(0)))


@pytest.fixture
def toolset() -> Any:
    return as_toolset(GeometryTool, Geo3kToolOptions(timeout=SLOW), BuildContext(NAME))


async def submit(session: Any, answer: str) -> Any:
    return await session.call(ToolCall(NAME, {"answer": answer}))


async def test_the_life_of_an_instance(toolset: Any) -> None:
    async with opened(toolset) as session:
        wrong = await submit(session, "13")
        assert wrong.text == "Current parsed answer='13' reward=0.0"
        assert wrong.reward == -0.05
        right = await submit(session, "\\boxed{12.50}")
        assert right.text == "Current parsed answer='12.50' reward=1.0"
        assert right.reward == 0.0
        again = await submit(session, "12.5")
        assert again.reward == -0.05
        assert await session.reward() == 1.0
        worse = await submit(session, "1")
        assert worse.reward == -0.05
        assert await session.reward() == 0.0


@pytest.mark.parametrize("gold", [None, "", " cm^ "])
def test_a_task_without_a_ground_truth_is_told(toolset: Any, gold: Any) -> None:
    async def work() -> None:
        async with opened(toolset, gold):
            pass

    if gold == " cm^ ":
        return asyncio.run(work())  # What isn't a unit alone may be an answer.
    with pytest.raises(ToolsetError, match="holds no answer"):
        asyncio.run(work())
    return None


# The reward.


def score_of(said: str, gold: Any = "12.5", reasoning: str | None = "so", **options: Any) -> Any:
    episode: Episode = make_episode(said)
    turn = replace(episode.turns[-1], content=said, reasoning=reasoning)
    trajectory = replace(episode.main, turns=(*episode.turns[:-1], turn))
    episode = replace(episode, task=make_task(answer=gold), trajectories=(trajectory,))
    reward = Geo3kReward(Geo3kRewardOptions(timeout=SLOW, **options), CONTEXT)
    try:
        return asyncio.run(reward.score(episode))
    finally:
        reward.close()


@pytest.mark.parametrize(
    ("said", "reasoning", "options", "value"),
    [
        ("So \\boxed{12.5}", "so", {}, 1.0),
        ("So \\boxed{12.5}", None, {}, 0.9),
        ("So \\boxed{13}", "so", {}, 0.1),
        ("12.5", "so", {}, 0.0),
        ("So \\boxed{12.5}", None, {"format_score": 0.0}, 1.0),
    ],
)
def test_the_score(said: str, reasoning: str | None, options: dict[str, Any], value: float) -> None:
    score = score_of(said, reasoning=reasoning, **options)
    assert score.value == pytest.approx(value)
    assert score.metrics["correct"] == float(value >= 0.9)
    assert score.metrics["answered"] == float("boxed" in said)


# Files.


def png(red: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.new("RGB", (56, 56), (red, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "images": [{"bytes": png(n), "path": None}],
            "problem": f"<image>Find x, number {n}.",
            "answer": f"{n} \\sqrt {{ 2 }}",
        }
        for n in range(count)
    ]


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A copy of the data set as a hub has it."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path / "geometry3k"
    (folder / "data").mkdir(parents=True)
    for split, count in (("train", 5), ("test", 2)):
        parquet.write_table(arrow.Table.from_pylist(rows(count)), folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def read(path: Path, **options: Any) -> Geo3k:
    return Geo3k(Geo3kDataOptions(path=str(path), **options), CONTEXT)


def test_a_hubs_copy(hub: Path) -> None:
    data = read(hub, limit=3)
    assert len(data) == 3
    task = data[2]
    assert task.answer == "2 \\sqrt { 2 }"
    assert task.tools_kwargs == {NAME: {"create_kwargs": {"ground_truth": "2 \\sqrt { 2 }"}}}
    system, user = task.messages
    assert system.role == "system"
    assert NAME in system.content
    assert user.content.startswith("<image>Find x, number 2. You FIRST think")
    assert user.media[0].data == png(2)
    assert len(read(hub, split="test")) == 2
    (alone,) = read(hub, instruction="", system_prompt=None)[0].messages
    assert alone.content == "<image>Find x, number 0."


def test_what_the_command_writes_is_read_alike(hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "verl"
    run(str(hub), str(target))
    assert "train.parquet: 5 problems" in capsys.readouterr().out
    again, before = list(iterate(read(target))), list(iterate(read(hub)))
    assert [task.messages for task in again] == [task.messages for task in before]
    assert [task.answer for task in again] == [task.answer for task in before]
    assert again[1].extra["extra_info"]["index"] == 1
    assert again[1].extra["data_source"] == "hiyouga/geometry3k"
    with pytest.raises(DataError, match="is there already"):
        run(str(hub), str(target))
    run(str(hub), str(target), "--overwrite", "--split", "test", "--limit", "1")
    assert len(read(target, split="test")) == 1
    assert sorted(path.name for path in target.iterdir()) == ["test.parquet", "train.parquet"]


def test_what_the_command_writes_is_what_verl_reads(hub: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    run(str(hub), str(tmp_path / "out"))
    (row, *_) = parquet.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert row["reward_model"] == {"style": "rule", "ground_truth": "0 \\sqrt { 2 }"}
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["images"][0]["bytes"] == png(0)
    info = row["extra_info"]
    assert info["need_tools_kwargs"] is True
    assert info["tools_kwargs"] == {NAME: {"create_kwargs": {"ground_truth": "0 \\sqrt { 2 }"}}}


def run(*words: str) -> None:
    parser = argparse.ArgumentParser()
    command = Data()
    command.configure(parser)
    assert command.run(parser.parse_args(words)) == 0


def test_what_datasets_saves(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    folder = tmp_path / "saved" / "train"
    folder.mkdir(parents=True)
    table = arrow.Table.from_pylist(rows(3))
    with (
        arrow.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        arrow.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    data = read(tmp_path / "saved")
    assert [task.answer for task in iterate(data)] == ["0 \\sqrt { 2 }", "1 \\sqrt { 2 }", "2 \\sqrt { 2 }"]
    assert data[1].messages[1].media[0].data == png(1)


def test_paths_of_pictures_begin_at_their_file(tmp_path: Path) -> None:
    row = {"images": ["a.png", {"path": "b.png", "bytes": None}], "problem": "<image><image>?", "answer": "1"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    media = read(tmp_path)[0].messages[1].media
    assert [item.data for item in media] == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"question": "?", "answer": "1"}, "needs `problem` and `answer`"),
        ({"problem": "?"}, "ground truth is None"),
        ({"problem": "?", "answer": " "}, "ground truth is ' '"),
        ({"problem": "?", "answer": "1", "images": "a.png"}, "expected a list"),
        ({"problem": "?", "answer": "1", "images": [3]}, r"'images\[0\]' is 3"),
        (
            {"problem": "<image>", "answer": "1", "images": ["a", "b"]},
            "2 images, and the messages hold `<image>` 1 times",
        ),
        ({"prompt": [{"role": "user", "content": "?"}]}, "ground truth is None"),
    ],
)
def test_bad_rows_are_told_with_their_place(tmp_path: Path, row: dict[str, Any], match: str) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=match) as caught:
        read(tmp_path)[0]
    assert "train.jsonl:1" in str(caught.value)
