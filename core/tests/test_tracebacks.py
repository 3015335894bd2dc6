"""Where a traceback begins, wherever toolrl and the author's code are installed."""

from __future__ import annotations

import os
from pathlib import Path
from traceback import FrameSummary, StackSummary

import pytest

from toolrl import tracebacks

LIBRARY = Path(os.__file__).parent


@pytest.mark.parametrize("toolrl", ["/clone/core/src/toolrl", str(LIBRARY / "site-packages" / "toolrl")])
@pytest.mark.parametrize(
    "author", ["/home/me/tool.py", str(LIBRARY / "site-packages" / "toolrl_plugin_x" / "tool.py"), "<string>"]
)
def test_it_begins_at_the_authors_first_frame(toolrl: str, author: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_TOOLRL", toolrl + os.sep)
    inside = [f"{toolrl}/tools/policy.py", str(LIBRARY / "asyncio" / "tasks.py"), "<frozen runpy>"]
    frames = [FrameSummary(name, 1, "f", line="x") for name in [*inside, author, *inside]]
    shown = tracebacks.from_author(StackSummary.from_list(frames))
    assert [frame.filename for frame in shown] == [author, *inside]
    assert len(tracebacks.from_author(StackSummary.from_list(frames[:3]))) == 3


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            'ray::Worker.execute() (pid=1)\n  File "/a/tool.py", line 3, in execute\n    f()\nKeyError: 4\n',
            "KeyError: 4",
        ),
        (
            "2 validation errors\ntext\n  Input should be a string",
            "2 validation errors\ntext\n  Input should be a string",
        ),
        ("", ""),
    ],
)
def test_the_message_of_an_exception_holds_no_traceback(message: str, shown: str) -> None:
    assert tracebacks.message_of(RuntimeError(message)) == shown
