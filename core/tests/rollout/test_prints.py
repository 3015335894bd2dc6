"""What tools and rewards print can't steer the terminal, and isn't mixed into the command's output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest

from toolrl.tools import tool
from toolrl.types import Episode, Score

EVIL = "\x1b[31mred\x1b]0;title\x07 \x9b1A"
SHOWN = "␛[31mred␛]0;title␇ \\u009b1A"


@tool
def in_thread() -> str:
    """Prints."""
    print("thread", EVIL)
    sys.stderr.write(f"err {EVIL}\n")
    return "x"


@tool
async def on_loop() -> str:
    """Prints."""
    print("loop", EVIL)
    await asyncio.to_thread(print, "deep", EVIL)
    return "x"


@tool
def inline() -> str:
    """Prints."""
    sys.stdout.writelines([f"inline {EVIL}", "\n"])
    return "x"


@tool(process=True)
def in_process() -> str:
    """Prints."""
    print("process", EVIL)
    sys.stderr.write(f"process err {EVIL}\n")
    return "x"


class Judge:
    def score(self, episode: Episode) -> Score:
        print("judge", EVIL)
        return Score(1.0)


def test_prints_go_to_standard_error_with_control_characters_visible(
    episode_of: Callable[..., Episode], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr
    episode_of(30, "in_thread", "on_loop", "inline", targets=[in_thread, on_loop, inline], reward=Judge())
    assert (sys.stdout, sys.stderr) == before
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(err.splitlines()) == sorted(
        f"{who} {SHOWN}" for who in ("thread", "err", "loop", "deep", "inline", "judge")
    )


def test_prints_of_a_worker_process_are_visible_too(
    episode_of: Callable[..., Episode], capfd: pytest.CaptureFixture[str]
) -> None:
    episode_of(30, "in_process", targets=[in_process])
    out, err = capfd.readouterr()
    assert out == ""
    assert sorted(err.splitlines()) == [f"process err {SHOWN}", f"process {SHOWN}"]
