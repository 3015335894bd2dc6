"""Parts of one generation: joined, with a version for each token, and cut where a stop string is completed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.types import Generation
from toolrl_plugin_vllm import joining

PIECES = ("a", "b", "ab", "ba", "<", ">", "<ab>", "é")


def decode(ids: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in ids)


def part(ids: Sequence[int], version: int, finish: str = "abort", stopped_by: str | int | None = None) -> Generation:
    values = tuple(-0.1 * (n + 1) for n in range(len(ids)))
    return Generation(tuple(ids), values, finish, stopped_by, versions=(version,) * len(ids), cached=version + 3)  # type: ignore[arg-type]


def test_parts_are_joined_in_order() -> None:
    found = joining.join([part((0, 1), 4), part((), 5), part((2,), 6, "stop", 2)])
    assert (found.ids, found.versions, found.logprobs) == ((0, 1, 2), (4, 4, 6), (-0.1, -0.2, -0.1))
    assert (found.finish, found.stopped_by, found.cached) == ("stop", 2, 7)


@given(
    st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=20),
    st.lists(st.text("ab<>é", min_size=1, max_size=4), max_size=3),
)
def test_a_generation_is_cut_after_the_token_that_completes_a_stop_string(ids: list[int], stops: list[str]) -> None:
    found = joining.cut_at_stop(part(ids, 0, "length"), stops, decode)
    ends = [n for n in range(1, len(ids) + 1) if any(stop in decode(ids[:n]) for stop in stops)]
    if not ends:
        assert (found.ids, found.finish) == (tuple(ids), "length")
        return
    assert found.ids == tuple(ids[: ends[0]])
    assert len(found.logprobs) == len(found.versions) == ends[0]
    assert found.finish == "stop"
    text, stop = decode(found.ids), found.stopped_by
    assert isinstance(stop, str)
    first = min(text.find(one) + len(one) for one in stops if one in text)
    assert stop in stops
    assert text.find(stop) + len(stop) == first


@pytest.mark.parametrize("stopped_by", [">", 5])
def test_what_a_server_stopped_rightly_stays_as_it_is(stopped_by: str | int) -> None:
    given_ = part((0, 4, 5), 0, "stop", stopped_by)
    assert joining.cut_at_stop(given_, (">",), decode) is given_


def test_an_earlier_stop_string_goes_before_a_later_end() -> None:
    found = joining.cut_at_stop(part((0, 4, 1, 5, 0), 0, "stop", 0), ("b>", "<"), decode)
    assert (found.ids, found.stopped_by) == ((0, 4), "<")
