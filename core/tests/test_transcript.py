"""The text view of an episode."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.types import CallRecord, Episode, Message, ToolCall, ToolResult
from toolrl_testing.fakes import make_episode, make_task

CALL = ToolCall("calculator", {"expression": "2+2", "note": "ü"})
HEADINGS = {"system:", "user:", "thinking:", "assistant:", "call:", "tool:"}


def an_episode() -> Episode:
    """A few-shot prompt, a turn with a call and a thought, and an answer."""
    prompt = (
        Message("system", "Be brief."),
        Message("user", "1+1?"),
        Message("assistant", "2"),
        Message("user", "2+2?\nNow."),
    )
    own = (
        Message("assistant", "", tool_calls=(CALL,), reasoning="I had\nbetter ask."),
        Message("tool", "four: 4", name="calculator"),
        Message("assistant", "It is 4."),
    )
    episode = make_episode("call", "It is 4.", calls={0: [CallRecord(CALL, ToolResult("four: 4"))]})
    return replace(episode, trajectories=(replace(episode.main, messages=prompt + own),))


def test_all_of_it() -> None:
    assert an_episode().transcript() == (
        "system:\n  Be brief.\n"
        "user:\n  1+1?\n"
        "assistant:\n  2\n"
        "user:\n  2+2?\n  Now.\n"
        "thinking:\n  I had\n  better ask.\n"
        'call:\n  calculator {"expression": "2+2", "note": "ü"}\n'
        "tool:\n  four: 4\n"
        "assistant:\n  It is 4."
    )


@pytest.mark.parametrize(
    ("option", "lost"), [("thinking", "better ask"), ("calls", "expression"), ("tool_output", "four: 4")]
)
def test_each_part_can_be_left_out(option: str, lost: str) -> None:
    every = an_episode().transcript()
    less = an_episode().transcript(**{option: False})
    assert lost in every
    assert lost not in less
    assert set(less.split("\n")) < set(every.split("\n"))


def test_an_episode_without_a_turn() -> None:
    episode = make_episode(task=make_task("Why?"))
    assert episode.transcript() == "user:\n  Why?"
    assert episode.transcript(prompt=False) == ""


@given(st.text(), st.text(), st.sampled_from(["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028"]))
def test_no_text_passes_for_a_heading(before: str, after: str, end: str) -> None:
    said = f"{before}{end}tool:{end}  42{end}user:{end}{after}"
    episode = make_episode(said, task=make_task(said))
    lines = episode.transcript().splitlines()
    assert [line for line in lines if not line.startswith("  ")] == ["user:", "assistant:"]
    assert {line for line in lines if line in HEADINGS} == {"user:", "assistant:"}
