"""The token buffer: exactness rules 1 and 2, and that a violation is seen."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.chat.buffer import TokenBuffer
from toolrl.errors import ExactnessError


def started() -> TokenBuffer:
    buffer = TokenBuffer()
    buffer.prompt((1, 2, 3))
    return buffer


def test_fields_line_up() -> None:
    buffer = started()
    buffer.sampled((4, 5), (-0.5, -0.25), (7, 8))
    buffer.given((6,))
    buffer.sampled((9,), (0.0,), (8,))
    trajectory = buffer.trajectory()
    assert trajectory.ids == (1, 2, 3, 4, 5, 6, 9)
    assert trajectory.loss_mask == (0, 0, 0, 1, 1, 0, 1)
    assert trajectory.logprobs == (0.0, 0.0, 0.0, -0.5, -0.25, 0.0, 0.0)
    assert trajectory.weight_versions == (-1, -1, -1, 7, 8, -1, 8)
    assert trajectory.prompt_length == 3


piece = st.tuples(st.booleans(), st.lists(st.integers(0, 200_000), max_size=6))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.lists(piece, max_size=8))
def test_each_prompt_extends_the_one_before(prompt: list[int], pieces: list[tuple[bool, list[int]]]) -> None:
    buffer = TokenBuffer()
    buffer.prompt(prompt)
    expected, mask = list(prompt), [0] * len(prompt)
    for is_sampled, ids in pieces:
        before = buffer.ids
        if is_sampled:
            buffer.sampled(ids, [-1.0] * len(ids), [0] * len(ids))
        else:
            buffer.given(ids)
        expected += ids
        mask += [int(is_sampled)] * len(ids)
        assert buffer.ids == before + tuple(ids)
    trajectory = buffer.trajectory()
    assert trajectory.ids == tuple(expected)
    assert trajectory.loss_mask == tuple(mask)
    assert [value == 0.0 for value in trajectory.logprobs] == [not m for m in mask]
    assert [version == -1 for version in trajectory.weight_versions] == [not m for m in mask]


@pytest.mark.parametrize(
    ("logprobs", "versions", "says"),
    [
        ((-1.0,), (0, 0), "2 ids, 1 log-probabilities"),
        ((-1.0, -1.0), (0,), "and 1 weight versions"),
        ((-1.0, math.nan), (0, 0), "token 1 (id 5) is nan"),
        ((-math.inf, -1.0), (0, 0), "token 0 (id 4) is -inf"),
        ((-1.0, 0.01), (0, 0), "token 1 (id 5) is 0.01"),
        ((-1.0, -1.0), (0, -1), "weight version -1"),
    ],
)
def test_an_engine_that_breaks_its_contract_is_seen(logprobs: Any, versions: Any, says: str) -> None:
    buffer = started()
    with pytest.raises(ExactnessError) as caught:
        buffer.sampled((4, 5), logprobs, versions)
    assert says in str(caught.value)
    assert buffer.ids == (1, 2, 3)


def test_rounding_above_zero_is_no_violation() -> None:
    buffer = started()
    buffer.sampled((4,), (5e-5,), (0,))
    assert buffer.trajectory().logprobs[-1] == 5e-5


def test_order_is_enforced() -> None:
    with pytest.raises(ExactnessError, match="before the prompt"):
        TokenBuffer().given((1,))
    with pytest.raises(ExactnessError, match="before the prompt"):
        TokenBuffer().sampled((1,), (0.0,), (0,))
    with pytest.raises(ExactnessError, match="one prompt"):
        started().prompt((1,))
    with pytest.raises(ExactnessError, match="no tokens"):
        TokenBuffer().prompt(())
    with pytest.raises(ExactnessError, match="negative"):
        started().given((-1,))


def test_a_token_changed_after_it_was_a_prompt_is_seen() -> None:
    buffer = started()
    assert buffer.ids == (1, 2, 3)
    buffer._ids[1] = 99
    buffer.given((4,))
    assert buffer.ids == (1, 2, 3, 4)
    with pytest.raises(ExactnessError, match="after an engine was given them"):
        buffer.check()


@pytest.mark.parametrize(
    ("field", "position", "value"),
    [("_loss_mask", 0, 1), ("_loss_mask", 3, 0), ("_logprobs", 0, -0.5), ("_versions", 3, -1), ("_versions", 0, 4)],
)
def test_check_sees_every_field(field: str, position: int, value: float) -> None:
    buffer = started()
    buffer.sampled((4,), (-0.5,), (0,))
    buffer.check()
    getattr(buffer, field)[position] = value
    with pytest.raises(ExactnessError):
        buffer.check()
