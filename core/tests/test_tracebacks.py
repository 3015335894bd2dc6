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


def test_a_plugin_above_the_users_file_counts_as_toolrls() -> None:
    """A plugin that runs classes of another system's users; without such a file it is the author's own."""
    plugin, library = "/clone/toolrl_plugin_verl/adapter.py", str(LIBRARY / "site-packages" / "requests" / "api.py")
    frames = {name: FrameSummary(name, 1, "f", line="x") for name in (plugin, "/home/me/tool.py", library)}
    shown = tracebacks.from_author(StackSummary.from_list(frames.values()))
    assert [frame.filename for frame in shown] == ["/home/me/tool.py", library]
    shown = tracebacks.from_author(StackSummary.from_list([frames[plugin], frames[library]]))
    assert [frame.filename for frame in shown] == [plugin, library]


def test_an_error_of_toolrls_with_a_cause_has_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"failed": "/clone/toolrl/policy.py", "users": "/home/me/tool.py"}
    monkeypatch.setattr(tracebacks, "_TOOLRL", "/clone/toolrl/")
    exec(compile("def users(): return {}[4]", names["users"], "exec"), found := {})
    text = "def failed(f):\n try: f()\n except KeyError as error: raise ValueError('no score') from error"
    exec(compile(text, names["failed"], "exec"), found)
    try:
        found["failed"](found["users"])
    except ValueError as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # This test's own frame.
        text = tracebacks.format_error(error)
    assert names["users"] in text
    assert names["failed"] not in text
    assert text.endswith("ValueError: no score\n")
