"""Episodes go to JSON and come back the same."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.runs.files import json_line
from toolrl.runs.folder import RunFolder
from toolrl.runs.records import Opaque, episode_from_json, episode_to_json, from_plain, to_plain
from toolrl.types import CallError, Episode, Media, MediaInput, Message, RewardEntry, Task, Trajectory, Turn

numbers = st.integers() | st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | numbers | st.text() | st.binary(max_size=20) | st.builds(Path, st.just("a/b"))
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.sampled_from(["$tuple", "$map"]) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)
named = st.dictionaries(st.text(max_size=8), anything, max_size=3)


def through_json(value: Any) -> Any:
    return json.loads(json_line(value))


@given(anything)
def test_any_value_round_trips(value: Any) -> None:
    back = from_plain(through_json(to_plain(value)))
    assert back == value
    assert _types(back) == _types(value)


def _types(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value), [_types(item) for item in value]
    if isinstance(value, dict):
        return [(_types(key), _types(item)) for key, item in value.items()]
    return type(value)


# What `from_type` can't know: `Any` means anything that has a JSON form, and mappings are plain ones.
st.register_type_strategy(
    Task, st.builds(Task, id=st.text(), messages=st.just(()), answer=anything, extra=named, tools_kwargs=st.just({}))
)
st.register_type_strategy(
    Media, st.builds(Media, kind=st.sampled_from(["image", "video"]), data=st.text() | st.binary(max_size=9))
)


@given(st.data())
def test_episodes_round_trip(make_episode: Callable[..., Episode], data: st.DataObject) -> None:
    text, floats = st.text(), st.floats(allow_nan=False)
    episode = make_episode(
        question=data.draw(text), said=data.draw(text), result=data.draw(text), failed=data.draw(st.booleans())
    )
    error = data.draw(st.builds(CallError, kind=text, message=text, name=st.none() | text, raw=text))
    turn = replace(episode.turns[0], items=(*episode.turns[0].items, error))
    logprobs = tuple(data.draw(st.lists(floats, min_size=11, max_size=11)))
    media = Message("user", data.draw(text), media=tuple(data.draw(st.lists(st.from_type(Media), max_size=2))))
    episode = replace(
        episode,
        task=data.draw(st.from_type(Task)),
        trajectories=(
            replace(
                episode.main,
                turns=(turn, *episode.turns[1:]),
                messages=(*episode.messages, media),
                logprobs=logprobs,
            ),
        ),
        metrics=data.draw(st.dictionaries(text, floats, max_size=3)),
        seconds=data.draw(floats),
    )
    assert episode_from_json(through_json(episode_to_json(episode))) == episode


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    ids = draw(st.lists(st.integers(0, 1), max_size=8))
    prompt = draw(st.integers(0, len(ids)))
    mask = [0] * prompt + [draw(st.integers(0, 1)) for _ in ids[prompt:]]
    turn = Turn(draw(st.integers(0, 9)), (), (), (), "stop", usage=draw(st.sampled_from([{}, {"cost": 0.5}])))
    return Trajectory(
        tuple(ids), tuple(mask), tuple(-0.5 * it for it in mask), tuple(3 if it else -1 for it in mask), prompt,
        turns=draw(st.sampled_from([(), (turn,)])), role=draw(st.sampled_from(["agent", "user"])),
        trained=draw(st.booleans()), routes=draw(st.none() | st.binary(max_size=2)),
        sampling_masks=draw(st.none() | st.binary(max_size=2)),
    )  # fmt: skip


@given(st.lists(trajectories(), max_size=5))
def test_any_trajectories_round_trip(make_episode: Callable[..., Episode], drawn: list[Trajectory]) -> None:
    """Also those that have beginnings in common, and those of an API, which have no tokens."""
    episode = replace(make_episode(), trajectories=tuple(drawn))
    assert episode_from_json(through_json(episode_to_json(episode))) == episode


FLAT = (
    "reward", "id", "task", "environment", "group", "index", "ids", "loss_mask", "logprobs", "weight_versions",
    "prompt_length", "turns", "messages", "stop_reason", "answer", "rewards", "metrics", "failure", "seconds",
    "temperature", "media", "notes", "routes",
)  # fmt: skip
"""A record's fields when episodes had one trajectory, of role `agent`."""


def test_one_trajectory_is_written_as_it_always_was(make_episode: Callable[..., Episode]) -> None:
    record = through_json(episode_to_json(make_episode()))
    assert record.keys() == set(FLAT)
    assert all(entry.keys() == {"turn", "source", "value", "weight"} for entry in record["rewards"])
    only = episode_from_json(record).trajectories
    assert [(it.role, it.trained, it.prompt_length) for it in only] == [("agent", True, 4)]


def test_a_restated_beginning_is_written_once(make_episode: Callable[..., Episode]) -> None:
    """Also one that goes on from a trajectory in the middle, and one that was sampled where another began alike."""
    episode = make_episode()
    first = episode.main
    ids = (*first.ids[:7], 5, 6, 20, 21)
    forked = replace(
        first, ids=ids, loss_mask=(0,) * 9 + (1, 1), logprobs=(0.0,) * 9 + (-1.0, -2.0),
        weight_versions=(-1,) * 9 + (3, 3), prompt_length=9, turns=(replace(first.turns[1], index=2),),
    )  # fmt: skip
    alike = replace(first, turns=(), role="judge", trained=False)
    episode = replace(
        episode, trajectories=(first, forked, alike), rewards=(RewardEntry(None, "reward:r", 1.0, role="judge"),)
    )
    record = through_json(episode_to_json(episode))
    assert [it.get("restates") for it in record["trajectories"]] == [None, [0, 9], [0, 4]]
    assert record["trajectories"][1]["ids"] == [20, 21]
    assert episode_from_json(record) == episode
    assert episode_from_json(record) == episode, "a record can be read again"
    record["trajectories"][1]["restates"] = [7, 3]
    with pytest.raises(ValueError, match="not an episode"):
        episode_from_json(record)


def _with(episode: Episode, **fields: Any) -> Episode:
    return replace(episode, trajectories=(replace(episode.main, **fields),))


def test_numbers_that_are_not_finite(make_episode: Callable[..., Episode]) -> None:
    episode = _with(make_episode(), logprobs=(-math.inf, math.nan))
    episode = replace(episode, metrics={"x": math.nan})
    back = episode_from_json(through_json(episode_to_json(episode)))
    assert back.logprobs[0] == -math.inf
    assert math.isnan(back.logprobs[1])
    assert math.isnan(back.metrics["x"])


def test_what_json_cannot_hold_is_named(make_episode: Callable[..., Episode]) -> None:
    class Image:
        pass

    episode = _with(make_episode(), media=(MediaInput("image", (0, 1), "a", {"pixel_values": Image()}),))
    (item,) = episode_from_json(through_json(episode_to_json(episode))).media
    assert item.span == (0, 1)
    stored = item.tensors["pixel_values"]
    assert isinstance(stored, Opaque)
    assert "Image" in stored.text


def test_small_arrays_become_lists_and_large_ones_a_name() -> None:
    numpy = pytest.importorskip("numpy")
    assert to_plain(numpy.float32(0.5)) == 0.5
    assert to_plain({"a": numpy.arange(3)}) == {"a": [0, 1, 2]}
    assert "(100, 100)" in to_plain(numpy.zeros((100, 100)))["$opaque"]


def test_unknown_fields_are_passed_over_and_missing_ones_take_the_default(make_episode: Callable[..., Episode]) -> None:
    record = episode_to_json(make_episode())
    del record["temperature"]
    assert episode_from_json({**record, "of_a_later_version": 1}) == make_episode()




def test_a_stop_reason_of_older_records_is_read_under_its_present_name(
    make_episode: Callable[..., Episode], make_run: Callable[..., RunFolder]
) -> None:
    record = through_json(episode_to_json(make_episode()))
    assert episode_from_json({**record, "stop_reason": "no_call"}).stop_reason == "final"
    folder = make_run()
    with folder.metrics.path.open("ab") as file:
        file.write(json_line({"step": 9, "kind": "train", "time": 0.0, "episodes": 1, "stop/no_call": 0.5}))
    assert RunFolder.open(folder.directory).metrics_lines()[-1].metrics == {"stop/final": 0.5}
