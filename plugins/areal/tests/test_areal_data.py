"""The data set and the reward `areal_tir`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import DataError
from toolrl.protocols import BuildContext
from toolrl.types import CallRecord, Episode, Message, Segment, Task, ToolCall, ToolResult, Turn
from toolrl_plugin_areal.dataset import ArealTirData
from toolrl_plugin_areal.options import ArealTirDataOptions, ArealTirRewardOptions
from toolrl_plugin_areal.reward import ArealTirReward
from toolrl_testing.fakes import make_episode, make_task

USER = {"role": "user", "content": "What is 15 + 27?"}


def tasks(path: Path, *rows: Any, **options: Any) -> list[Task]:
    file = path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ArealTirData(ArealTirDataOptions(path=str(file), **options), BuildContext("areal_tir"))
    return [data[index] for index in range(len(data))]


def test_a_row_is_a_task(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, {"messages": [USER], "answer": "42", "level": 3}, environment="math")
    assert task.messages == (Message("user", "What is 15 + 27?"),)
    assert (task.answer, task.environment, task.extra) == ("42", "math", {"level": 3})


def test_rows_of_torl(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, {"prompt": [USER], "ability": "math", "reward_model": {"ground_truth": "\\frac12"}})
    assert (task.messages[0].content, task.answer) == ("What is 15 + 27?", "\\frac12")


def test_a_system_message_is_left_out(tmp_path: Path) -> None:
    row = {"messages": [{"role": "system", "content": "Be brief."}, USER], "answer": 42}
    (task,) = tasks(tmp_path, row)
    assert ([message.role for message in task.messages], task.answer) == (["user"], "42")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"answer": "1"}, "no `messages`"),
        ({"messages": [USER]}, "`answer` is None"),
        ({"messages": [USER], "answer": " "}, "`answer` is ' '"),
        ({"messages": [USER], "answer": float("nan")}, "`answer` is None"),
        ({"messages": [USER], "answer": ["3", float("nan")]}, "`answer` is"),
        ({"messages": [{"role": "system", "content": "x"}], "answer": "1"}, "asks nothing"),
        ({"messages": [{"role": "robot"}], "answer": "1"}, "role"),
    ],
)
def test_a_bad_row_is_told_with_its_line(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match="rows.jsonl") as error:
        tasks(tmp_path, {"messages": [USER], "answer": "1"}, row)
    assert said in str(error.value)


def episode(*said: str, answer: str = "42", output: str = "", inline: bool = True) -> Episode:
    """Each text is a turn; a tool's output follows the first."""
    turns = []
    for index, text in enumerate(said):
        segments = [Segment("model", text, (0, 1))]
        calls = (CallRecord(ToolCall("python", {"code": "x"}), ToolResult(output)),) if output and not index else ()
        if calls and inline:
            segments.append(Segment("tool", f"\n```output\n{output}\n```\n", (1, 2)))
        turns.append(Turn(index, tuple(segments), (), calls, "stop", content=text))
    return make_episode(task=make_task(answer=answer), turns=tuple(turns))


def scores(*given: Episode, **options: Any) -> list[tuple[float, float]]:
    reward = ArealTirReward(ArealTirRewardOptions(workers=1, **options), BuildContext("areal_tir"))
    try:
        results = [asyncio.run(reward.score(one)) for one in given]
    finally:
        reward.close()
    return [(result.value, result.metrics["correct"]) for result in results]


def test_right_and_wrong() -> None:
    right = [episode("so \\boxed{42}"), episode("\\boxed{\\frac{84}{2}}", "and that is it")]
    boxed, wrong = episode("\\boxed{42}", answer="\\boxed{42}"), episode("so \\boxed{41}")
    assert scores(*right, boxed, wrong) == [(1.0, 1.0)] * 3 + [(0.0, 0.0)]
    assert scores(right[0], wrong, bias=-0.5, scaling=10) == [(5.0, 1.0), (-5.0, 0.0)]


def test_the_score_is_that_of_math_verify_alone() -> None:
    letters, small = episode("\\boxed{ABCD}", answer="BDAC"), episode("\\boxed{0.0}", answer="0.00000012")
    both = episode("\\boxed{1} and \\boxed{42}")
    assert scores(letters, small, both) == [(1.0, 1.0), (1.0, 1.0), (0.0, 0.0)]


def test_what_a_tool_printed_is_not_the_models_answer() -> None:
    given = [episode("let me see", "done", output="\\boxed{42}", inline=inline) for inline in (True, False)]
    assert scores(*given) == [(0.0, 0.0)] * 2
    assert scores(*given, tool_output=True) == [(1.0, 1.0)] * 2
