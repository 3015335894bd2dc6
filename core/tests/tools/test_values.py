"""Values that tools and rewards return, as Python's libraries make them."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import enum
import json
import pathlib
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import pydantic
import pytest

from toolrl.errors import RewardError
from toolrl.plugins.registry import Registry
from toolrl.protocols import BuildContext
from toolrl.python_objects import take_objects
from toolrl.rollouts.scoring import EpisodeReward, NamedReward, score_of
from toolrl.tools import tool
from toolrl.types import ToolResult
from toolrl_testing.fakes import make_episode, make_episode_context


class Color(str, enum.Enum):  # noqa: UP042 - what people write
    RED = "red"


class Rank(enum.IntEnum):
    FIRST = 1


class Point(NamedTuple):
    x: Any
    y: Any


class Graded(NamedTuple):
    answer: str
    reward: float


@dataclasses.dataclass
class Box:
    content: Any


class Model(pydantic.BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    content: Any


def returned(value: Any) -> ToolResult:
    @tool
    def give() -> Any:
        return value

    return asyncio.run(give.run({}, make_episode_context()))


PYTHON: list[tuple[Any, Any]] = [
    (range(3), [0, 1, 2]),
    ({"a": 1}.keys(), ["a"]),
    ({"a": 1}.items(), [["a", 1]]),
    (collections.deque([1]), [1]),
    (map(str, [1]), ["1"]),
    ({"b", "a", 3, 10, 2}, [2, 3, 10, "a", "b"]),
    (Point(1, [2]), {"x": 1, "y": [2]}),
    (Point("text", 0.5), {"x": "text", "y": 0.5}),
    (Box({Rank.FIRST: {Color.RED}}), {"content": {"1": ["red"]}}),
    ({datetime.date(2024, 1, 2): 1, (1, "b"): 2, None: 3}, {"2024-01-02": 1, '[1, "b"]': 2, "null": 3}),
    ([Decimal("3.10"), Fraction(1, 3), uuid.UUID(int=1)], ["3.10", "1/3", str(uuid.UUID(int=1))]),
    ([b"a\xff", pathlib.PurePosixPath("/a"), Rank.FIRST], ["a\\xff", "/a", 1]),
]


@pytest.mark.parametrize(("value", "expected"), PYTHON, ids=lambda value: type(value).__name__)
def test_pythons_own_values_are_read_as_json(value: Any, expected: Any) -> None:
    assert json.loads(returned(value).text) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Color.RED, "red"),
        (datetime.datetime(2024, 1, 2, 3), "2024-01-02T03:00:00"),
        (Decimal("3.10"), "3.10"),
        (pathlib.PurePosixPath("/a"), "/a"),
        (b"caf\xc3\xa9", "café"),
    ],
    ids=repr,
)
def test_a_value_that_json_writes_as_a_text_is_that_text(value: Any, text: str) -> None:
    assert returned(value).text == text


def test_a_named_tuple_is_an_answer_with_its_reward_if_it_says_so() -> None:
    assert returned(Graded("good", 0.5)) == ToolResult("good", reward=0.5)


def test_what_json_cannot_hold_is_refused_by_name() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value, said in (({1: "a", "1": "b"}, "'1'"), (endless, "itself"), (len, "builtin_function"), (Box, "class")):
        with pytest.raises(TypeError, match=f"'give' returned .*{said}"):
            returned(value)


def test_numpy_values_are_read_as_numbers() -> None:
    np = pytest.importorskip("numpy")
    for value, text in (
        (np.int64(3), "3"),
        (np.float32(0.1), "0.1"),
        (np.bool_(True), "true"),
        (np.str_("x"), "x"),
        (np.longdouble(0.5), "0.5"),
        (np.datetime64("2024-01-02", "ns"), "2024-01-02T00:00:00.000000000"),
        (np.array([[0.1, 2]], dtype=np.float32), "[[0.1, 2.0]]"),
        (np.array([1, "a", None], dtype=object), '[1, "a", null]'),
        (np.array([(1, 2.5)], dtype=[("a", int), ("b", np.float32)]), '[{"a": 1, "b": 2.5}]'),
        ({np.int64(1): np.float64(0.5), "s": {np.int64(2)}}, '{"1": 0.5, "s": [2]}'),
        (Model(content={"a": np.arange(2)}), '{"content": {"a": [0, 1]}}'),
    ):
        assert returned(value).text == text
    assert returned((np.arange(2), np.float32(0.5), {"m": np.bool_(True)})) == ToolResult(
        "[0, 1]", reward=0.5, metrics={"m": 1.0}
    )
    with pytest.raises(TypeError, match="as reward, expected a number"):
        returned(("t", np.arange(2)))
    with pytest.raises(ValueError, match="nan as reward"):
        returned(("t", np.float32("nan")))


def test_tensors_are_read_as_numbers() -> None:
    torch = pytest.importorskip("torch")
    assert returned(torch.tensor(3)).text == "3"
    assert returned(torch.tensor([0.1], requires_grad=True)).text == "[0.1]"
    assert returned(torch.ones(1, 2, dtype=torch.bfloat16)).text == "[[1.0, 1.0]]"
    result = returned(("t", torch.tensor(0.5, requires_grad=True), {"m": torch.tensor(1)}))
    assert (type(result.reward), result) == (float, ToolResult("t", reward=0.5, metrics={"m": 1.0}))


def test_tables_are_read_as_rows() -> None:
    pd = pytest.importorskip("pandas")
    for value, expected in (
        (
            pd.DataFrame({"a": [1, 2], "d": pd.Timestamp("2024-01-02")}),
            [{"a": n, "d": "2024-01-02T00:00:00"} for n in (1, 2)],
        ),
        (pd.DataFrame({"a": [1]}, index=["x"]), [{"index": "x", "a": 1}]),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {"columns": ["a", "a"], "index": [0], "data": [[1, 2]]}),
        (pd.Series([1, None]).astype("Int64"), [1, None]),
        (pd.Series(["b", "b", "a"]).value_counts(), {"b": 2, "a": 1}),
        (pd.Series([1, 2], index=["a", "a"]), [["a", 1], ["a", 2]]),
        ([pd.NaT, pd.NA, pd.Period("2024")], [None, None, "2024"]),
    ):
        assert json.loads(returned(value).text) == expected


# Rewards.


def scored(function: Any) -> EpisodeReward:
    """A reward function that a config names as an object, on one episode."""
    tree, registry = take_objects({"environments": {"default": {"rewards": [function]}}}, Registry([]))
    (name,) = tree["environments"]["default"]["rewards"]
    made = registry.get("rewards", name).component.load()(None, BuildContext(name))
    named, episode = NamedReward(name, made), make_episode("x")
    reward = EpisodeReward([named])
    reward.add_score(named, asyncio.run(score_of(named, episode)), episode)
    return reward


def test_a_reward_function_may_give_a_number_or_a_truth_value_of_any_library() -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    given = [
        np.isclose(1, 1),
        torch.tensor(True),
        True,
        np.array([True]),
        np.float32(0.5),
        torch.tensor(0.5),
        Decimal(2),
    ]
    found = []
    for value in given:

        def judged(episode: Any, value: Any = value) -> Any:
            return value

        reward = scored(judged)
        found.append((reward.entries[0].value, reward.metrics.get("correct")))
    assert found == [(1.0, 1.0)] * 4 + [(0.5, None), (0.5, None), (2.0, None)]


def test_a_plain_wrapper_of_an_async_reward_is_awaited() -> None:
    async def inner(episode: Any) -> float:
        return 0.5

    def judged(episode: Any) -> Any:
        return inner(episode)

    assert scored(judged).entries[0].value == 0.5


@pytest.mark.parametrize("value", ["0.5", None, [0.5], 1j, float("nan"), -float("inf"), 10**400, b"1"], ids=repr)
def test_what_is_no_number_to_train_on_is_an_error_that_names_the_reward(value: Any) -> None:
    def judged(episode: Any) -> Any:
        return value

    with pytest.raises(RewardError, match="'judged'"):
        scored(judged)
