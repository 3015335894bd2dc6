"""What verl's tools return becomes results, whatever it is."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.tools.results import check_result
from toolrl.types import Media, ToolResult
from toolrl_plugin_verl.results import TOOL_REWARD, from_execute, from_function
from toolrl_plugin_verl.tools.schemas import ToolResponse


@pytest.mark.parametrize(
    ("returned", "text", "reward", "metrics"),
    [
        ("hi", "hi", None, {}),
        (("hi",), "hi", None, {}),
        (("hi", 0.5), "hi", 0.5, {}),
        (("hi", True, None), "hi", 1.0, {}),
        (("hi", "hi", {}), "hi", None, {}),  # The sandbox guide's.
        ((None, None, None), "", None, {}),
        ({"text": "t", "image": ["a.png"]}, "t", None, {}),
        ({"text": "t", "more": 1}, '{"text": "t", "more": 1}', None, {}),
        (ToolResponse(), "", None, {}),
        (
            (ToolResponse(text="x"), 1, {"n": 2, "s": "x", "none": None, "big": 10**400, "nan": math.nan}),
            "x",
            1.0,
            {"n": 2},
        ),
        (["a", 1], '["a", 1]', None, {}),
        (7, "7", None, {}),
    ],
)
def test_what_execute_returns(returned: Any, text: str, reward: float | None, metrics: dict[str, float]) -> None:
    result = from_execute(returned, "t", counts=True)
    assert (result.text, result.reward) == (text, reward)
    assert {key: value for key, value in result.metrics.items() if key != TOOL_REWARD} == metrics
    assert result.metrics.get(TOOL_REWARD) == reward
    uncounted = from_execute(returned, "t", counts=False)
    assert (uncounted.reward, uncounted.metrics) == (None, result.metrics)


def test_rewards_and_metrics_may_be_scalars_of_numpy_or_torch() -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    for half in (np.float32(0.5), np.array(0.5), np.longdouble(0.5), torch.tensor(0.5)):
        result = from_execute(("hi", half, {"n": half}), "t", counts=True)
        assert (result.reward, result.metrics) == (0.5, {"n": 0.5, TOOL_REWARD: 0.5})


def test_pictures_and_videos_become_media() -> None:
    result = from_execute(ToolResponse(text="x", image=["a", b"b"], video=["c"]), "t", counts=True)
    assert result.media == (Media("image", "a"), Media("image", b"b"), Media("video", "c"))
    result = from_execute({"text": "x", "image": "one.png", "video": None}, "t", counts=True)
    assert result.media == (Media("image", "one.png"),)
    assert from_execute({"image": [None, "a"]}, "t", counts=True).media == (Media("image", "a"),)


@pytest.mark.parametrize("returned", [(), (1, 2, 3, 4)])
def test_a_tuple_of_another_length_is_an_error_of_the_tool(returned: Any) -> None:
    for read in (from_execute, from_function):
        with pytest.raises(TypeError, match="expected \\(response,\\)"):
            read(returned, "t", counts=True)


def test_a_function_tool_returns_a_number_or_nothing_as_reward() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        from_function(("x", "much"), "t", counts=True)
    assert from_function(None, "t", counts=True) == ToolResult("None", reward=0.0, metrics={TOOL_REWARD: 0.0})


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES, _VALUES, _VALUES)
def test_any_triple_gives_a_result(response: Any, reward: Any, metrics: Any) -> None:
    if isinstance(reward, int | float) and not abs(reward) < 1e99:
        reward = 0.0  # Such a reward is the tool's crash, as it is for any tool.
    check_result(from_execute((response, reward, metrics), "t", counts=True), "t")
