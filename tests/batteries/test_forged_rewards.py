"""Programs that are wrong and mean to pass their tests.

Each passes if the test runs in the program's own process, as `python solution_and_test.py` does, and none is worth
anything to the rewards that run tests.
"""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ConfigError
from toolrl_testing import make_build_context, make_episode, make_task

TESTS = ("assert add(1, 2) == 3", "assert add(20, 22) == 42")
FORGERIES = {
    "leaves": "import os\nos._exit(0)",
    "leaves when it is called": "import os\ndef add(a, b): os._exit(0)",
    "leaves politely": "raise SystemExit",
    "becomes another program": "import os\nos.execv('/bin/true', ['true'])",
    "becomes Python without asserts": "import os, sys\nif __debug__:\n"
    "    os.execv(sys.executable, [sys.executable, '-O', *sys.orig_argv[1:]])\nadd = lambda a, b: 0",
    "leaves at the end": "import atexit, os\natexit.register(os._exit, 0)\nadd = None",
    "hides what is raised": "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\nadd = None",
    "ends by a signal that it handles": "import os, signal\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.01)\ndef add(a, b):\n    while True: pass",
    "leaves the test to a child": "import os\nif os.fork(): os._exit(0)\ndef add(a, b): return 0",
    "equals everything": "class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()",
    "is a number that equals everything": "class Any(int):\n    def __eq__(self, other): return True\n"
    "def add(a, b): return Any(7)",
    "reads the test": "import re, sys\ndef add(a, b):\n    text = open(sys.argv[0]).read()\n"
    "    return int(re.search(rf'add\\({a}, {b}\\) == (\\d+)', text)[1])",
    "reads the caller's constants": "import sys\ndef add(a, b):\n    known = sys._getframe(1).f_code.co_consts\n"
    "    return known[known.index(b) + 1]",
    "traces the test": "import sys\ndef trace(frame, event, arg):\n    return trace\n"
    "def add(a, b):\n    frame = sys._getframe(1)\n    sys.settrace(trace)\n    frame.f_trace = skip\n    return 0\n"
    "def skip(frame, event, arg):\n    import os\n    os._exit(0)",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_without_the_wall_it_passes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("\n".join([FORGERIES[name], *TESTS]), encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@functools.cache
def runner() -> Any:
    runner_module = pytest.importorskip("toolrl_plugin_sandbox_fusion.runner")
    pytest.importorskip("toolrl_plugin_python", reason="the server needs the plugin `python`")
    try:
        return runner_module.ProgramRunner(python=sys.executable, languages=["python"])
    except ConfigError as error:
        pytest.skip(f"programs can't be isolated here: {error}")


async def scored_by_server(program: str, cases: dict[str, Any]) -> float:
    from toolrl_plugin_sandbox_fusion.options import SandboxRewardOptions
    from toolrl_plugin_sandbox_fusion.reward import SandboxReward
    from toolrl_plugin_sandbox_fusion.serve import SandboxServer

    async with SandboxServer(runner()) as server:
        options = SandboxRewardOptions(sandbox_fusion_url=server.url, timeout=5.0)
        episode = make_episode(f"```python\n{program}\n```", task=make_task(answer=cases))
        return (await SandboxReward(options, make_build_context()).score(episode)).value


async def scored_by_code(program: str, cases: Any) -> float:
    from toolrl_plugin_python.options import CodeOptions
    from toolrl_plugin_python.reward import CodeReward

    reward = CodeReward(CodeOptions(continuous=True, timeout=5), make_build_context())
    await reward.start()
    try:
        episode = make_episode(f"```python\n{program}\n```", task=make_task(answer=cases))
        return (await reward.score(episode)).value
    finally:
        await reward.stop()


CALLS = {"fn_name": "add", "inputs": ["1\n2", "20\n22"], "outputs": ["3", "42"]}


@pytest.mark.parametrize("cases", [{"assert_case": list(TESTS)}, CALLS], ids=["asserts", "calls"])
@pytest.mark.parametrize("name", FORGERIES)
def test_it_is_worth_nothing_on_a_server(name: str, cases: dict[str, Any]) -> None:
    runner()
    assert asyncio.run(scored_by_server(FORGERIES[name], cases)) == 0.0


@pytest.mark.parametrize("cases", [list(TESTS), CALLS], ids=["asserts", "calls"])
@pytest.mark.parametrize("name", FORGERIES)
def test_it_is_worth_nothing_here(name: str, cases: Any) -> None:
    runner()
    assert asyncio.run(scored_by_code(FORGERIES[name], cases)) == 0.0
