"""An interpreter in the hands of its code: whatever it answers, the run stays whole and only that call is spoilt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toolrl.types import ToolResult

Cells = Callable[..., list[ToolResult]]

FORGERIES = {
    "another answer": "import os; os.write(3, b'0123456789abcdef ok\\n')",
    "no answer": "import os; os.write(3, b'\\n' * 10)",
    "bytes": "import os; os.write(3, bytes(range(256)) * 1000)",
    "very much": "import os\nwhile True: os.write(3, b'x' * 65536)",
    "lines without end": "import os\nwhile True: os.write(3, b'ok\\n' * 1000)",
    "hanging up": "import os; os.close(3)",
    "closing everything": "import os; os.closerange(0, 256)",
    "reading the request": "import os; os.set_blocking(3, False); os.read(3, 1000)",
    "replacing the channel": "import os; os.dup2(1, 3)",
    "deep json": "import os; os.write(3, b'[' * 100_000)",
    "no printing": "import sys; sys.stdout = sys.stderr = sys.__stderr__ = None\n1/0",
    "no builtins": "import builtins; vars(builtins).clear()",
    "no repr": "class A:\n    def __repr__(self): import os; os._exit(9)\nA()",
    "its own frames": (
        "import sys\nframe = sys._getframe()\n"
        "while frame:\n    frame.f_locals.clear()\n    frame.f_globals.pop('os', 0)\n    frame = frame.f_back"
    ),
    "its own main": "import sys; sys.modules.clear()",
    "no alarm": "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass",
    "a tracer": "import sys\nsys.settrace(lambda *a: 1 / 0)\nsys.setprofile(lambda *a: 1 / 0)",
    "an exit in a finalizer": "class A:\n    def __del__(self): raise SystemExit\na = A()",
    "killing all it can": "import os\nos.kill(-1, 9)",
    "killing its parent": "import os\nos.kill(os.getppid(), 9)\nos.kill(1, 9)",
}


@pytest.mark.parametrize("persistent", [False, True])
def test_the_next_call_and_other_calls_work(cells: Cells, persistent: bool) -> None:
    codes = [code for forgery in FORGERIES.values() for code in (forgery, "print(6 * 7)")]
    results = cells(*codes, timeout=2, persistent=persistent)
    for name, result in zip(FORGERIES, results[1::2], strict=True):
        # A persistent interpreter that lives on may be spoilt for its own episode, which is its own loss.
        assert result.text == "42" or persistent, name
    assert cells("6 * 7")[0].text == "42"


def test_an_answer_can_not_be_given_in_advance(cells: Cells) -> None:
    """Answers carry a token that the code of an earlier call can't know."""
    first, second, third = cells(
        "import threading, os, time\n"
        "def forge():\n"
        "    while True: os.write(3, b'0123456789abcdef ok\\n'); time.sleep(0.001)\n"
        "threading.Thread(target=forge, daemon=True).start()",
        "import time; time.sleep(0.3); print('mine')",
        "import time; time.sleep(0.3); 6 * 7",
        persistent=True,
    )
    assert "disturbed its own interpreter" in first.text + second.text + third.text


@pytest.mark.parametrize(
    "kind", ["os.open('file', os.O_CREAT | os.O_RDWR)", "os.pipe()[1]", "socket.socketpair()[0].detach()", "fifo()"]
)
def test_locks_of_ranges_count(isolation: str, cells_of: Cells, kind: str) -> None:
    code = f"""
import fcntl, os, socket, time
def fifo():
    os.mkfifo("fifo")
    return os.open("fifo", os.O_RDWR)
handle = {kind}
for place in range(400_000, 0, -2):
    fcntl.lockf(handle, fcntl.LOCK_EX, 1, place)
time.sleep(20)
"""
    locked, after = cells_of(code, "6 * 7", isolation=isolation, memory_mb=64, timeout=120, cpu_seconds=60)
    assert "more than 64 MB of memory" in locked.text
    assert after.text == "42"
