"""Programs that would rather be told right than be right: none of them passes a test, under each isolation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from toolrl.types import Score
from toolrl_plugin_python.options import CodeOptions
from toolrl_plugin_python.reward import CodeReward
from toolrl_testing import make_build_context, make_episode, make_task

CALLS = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}
ASSERTS = ["assert add(1, 2) == 3"]
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 3) == 5\n"

SAY = """
import os
def say(answer):
    for number in range(3, 64):
        try: return os.write(number, answer)
        except OSError: pass
"""

HOSTILE = {
    "exits": "import os\nos._exit(0)",
    "exits in the function": "import os\ndef add(a, b): os._exit(0)",
    "leaves": "import sys\nsys.exit(0)",
    "kills itself": "import os\ndef add(a, b): os.kill(os.getpid(), 9)",
    "equals everything": """
class Sly(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 3
    def __index__(self): return 4
    def __int__(self): return 4
def add(a, b): return Sly(4)
""",
    "isn't data": """
class Anything:
    def __eq__(self, other): return True
def add(a, b): return Anything()
""",
    "passes for a list": """
class Sly(list):
    def __iter__(self):
        import itertools
        return itertools.repeat(3)
    def __eq__(self, other): return True
def add(a, b): return Sly()
""",
    "says passed": """
import os, sys
def add(a, b):
    for number in range(3, 64):
        try: os.write(number, b'{"verdict": "passed"}\\n' * 4)
        except OSError: pass
    print('{"verdict": "passed"}')
    return 0
""",
    "answers without a value": """
import os
for number in range(3, 64):
    try: os.write(number, b'{}')
    except OSError: pass
os._exit(0)
""",
    "patches what it can reach": """
import builtins, json, sys, types
main = sys.modules["__main__"]
main.encode = lambda value: 4
main.answer = lambda request: {"passed": True, "value": 4}
builtins.AssertionError = ValueError
builtins.isinstance = lambda *a: True
builtins.compile = builtins.exec = lambda *a, **k: None
json.dumps = lambda *a, **k: "passed"
def add(a, b): return 4
""",
    "looks through frames": """
import gc, sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            text = repr(value)
            if "= " "3" in text or "'out" "puts'" in text: return 3  # and not its own source
        frame = frame.f_back
    for thing in gc.get_objects():
        if isinstance(thing, str) and ("assert " "add" in thing or '"out' 'puts"' in thing): return 3
    return 4
""",
    "reads files": """
import os, pathlib
def add(a, b):
    for folder in (".", "/scratch", "/tmp", "/proc/self", "/proc"):
        for path in list(pathlib.Path(folder).glob("*")) + list(pathlib.Path(folder).glob("*/*")):
            try: text = path.read_text(errors="replace") if path.is_file() else ""
            except Exception: continue
            if "assert add(1" in text: return 3
    return 4
""",
    "replaces the interpreter's streams": """
import io, os, sys
sys.stdout = sys.stderr = sys.__stdout__ = io.StringIO("passed")
os.dup2(2, 1)
def add(a, b): return 4
""",
    "raises what a failed test raises": "def add(a, b): raise AssertionError",
    "raises what isn't caught": "def add(a, b): raise KeyboardInterrupt",
    "pretends to be of another class": "class BaseException(BaseException): pass\ndef add(a, b): raise BaseException",
    "prints without end": "import os\ndef add(a, b):\n    while True: os.write(2, b'x' * 65536)",
    "floods the channel": """
import os
def add(a, b):
    while True:
        for number in range(3, 64):
            try: os.write(number, b'x' * 65536)
            except OSError: pass
""",
    "forks": """
import os
def add(a, b):
    for _ in range(1000):
        try:
            if os.fork() == 0:
                while True: pass
        except OSError: break
    return 4
""",
    "leaves a child that answers": """
import os, time
def add(a, b):
    try: child = os.fork()
    except OSError: os._exit(0)
    if child == 0:
        for number in range(3, 64):
            try: os.write(number, b'{"verdict": "passed"}\\n')
            except OSError: pass
        time.sleep(60)
    os._exit(0)
""",
    "nests in what it writes": f"""{SAY}
def add(a, b):
    say(b'{{"value": ' + b'[' * 12000 + b']' * 12000 + b'}}')
    os._exit(0)
""",
    "answers twice": f"""{SAY}
def add(a, b):
    say(b'{{"value": 3}}')
    return 3
""",
    "nests without end": "def add(a, b):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "holds itself": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "gives a huge number": "def add(a, b): return 1 << (1 << 26)",
    "sets traps in its dict": """
class Key(str):
    def __hash__(self): return 1
    def __eq__(self, other): return True
def add(a, b): return {Key('x'): 3}
""",
}


def scores_of(pairs: Sequence[tuple[str, Any]], isolation: str, *, timeout: float = 1, **extra: Any) -> list[Score]:
    """The score of each program for its tests."""

    async def run() -> list[Score]:
        options = CodeOptions(isolation=isolation, timeout=timeout, memory_mb=256, continuous=True)  # type: ignore[arg-type]
        reward = CodeReward(options, make_build_context("code"))
        episodes = [
            make_episode(f"```python\n{program}\n```", task=make_task(answer=answer, extra=extra))
            for program, answer in pairs
        ]
        try:
            await reward.start()
            return await asyncio.gather(*(reward.score(episode) for episode in episodes))
        finally:
            await reward.stop()

    return asyncio.run(run())


def test_no_hostile_program_passes(isolation: str) -> None:
    answers = [CALLS, ASSERTS, CHECK] if isolation == "namespaces" else [ASSERTS]
    pairs = [(name, answer) for name in HOSTILE for answer in answers]
    scores = scores_of([(HOSTILE[name], answer) for name, answer in pairs], isolation, entry_point="add")
    passed = [name for (name, _), score in zip(pairs, scores, strict=True) if score.value or score.metrics["correct"]]
    assert passed == []


def test_a_result_far_longer_than_what_is_expected_is_not_read(isolation: str) -> None:
    (score,) = scores_of([("def add(a, b): return [[]] * 500_000", CALLS)], isolation, timeout=20)
    assert (score.value, score.metrics["limit"]) == (0.0, 1.0)


WHOLE = [
    "import os\nos._exit(0)",
    "print('3')\nraise SystemExit(1)",
    "import os, sys\nsys.stdout.write('3')\nsys.stdout.flush()\nos.abort()",
    "print('passed')\nprint({'correct': 1.0})",
    "import glob\nfor name in glob.glob('**', recursive=True) + ['/proc/self/cmdline']:\n"
    "    print(open(name, errors='replace').read()) if '.' in name or 'proc' in name else 0",
    "import sys\nsys.stdin.close()\nprint(sys.argv)",
]


def test_no_hostile_whole_program_passes(isolation: str) -> None:
    answer = {"inputs": ["1 2"], "outputs": ["3"]}
    assert {score.value for score in scores_of([(program, answer) for program in WHOLE], isolation)} == {0.0}


def test_an_honest_program_passes_them_all(isolation: str) -> None:
    honest = "def add(a, b): return a + b"
    pairs = [(honest, answer) for answer in (CALLS, ASSERTS, CHECK)]
    assert [score.value for score in scores_of(pairs, isolation, timeout=20, entry_point="add")] == [1.0] * 3
