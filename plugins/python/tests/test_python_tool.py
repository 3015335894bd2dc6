"""The tool `python`: what the model reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ArgumentsError, ConfigError
from toolrl.protocols import BuildContext
from toolrl.types import ToolCall, ToolResult
from toolrl_plugin_python import paths
from toolrl_plugin_python.keeper_process import KeeperError
from toolrl_plugin_python.options import PythonOptions
from toolrl_plugin_python.tool import MAX_CODE, PythonToolset, build_code_interpreter, build_python, check
from toolrl_testing import make_episode_context

Cells = Callable[..., list[ToolResult]]

TEXTS = [
    ("print(1)\n1 + 1", "1\n2"),
    ("x = 5", "(no output)"),
    ("None", "(no output)"),
    ("'text'", "'text'"),
    ("", "(no output)"),
    ("# a remark", "(no output)"),
    ("for n in range(2): print(n)", "0\n1"),
    ("é = 'ü'; é", "'ü'"),
    ("print('\\ud800')", "\\ud800"),
    ("import sys\nprint('a', end='')\nprint('b', file=sys.stderr)\nprint('c')\nsys.stderr.write('d')\n7",
     "ab\nc\nd7"),
    ("print('a', end='')\nNone", "a"),
    ("import os\nprint('a')\nos.write(1, b'b\\n')\nprint('c')", "a\nb\nc"),
    ("import subprocess as s, sys\nprint('a', flush=True)\n_ = s.run([sys.executable, '-c', 'print(2)'])\nprint('c')",
     "a\n2\nc"),
    ("__name__", "'__main__'"),
    ("def f():\n    '''doc'''\nf.__doc__", "'doc'"),
    ("import sys; sys.exit()", "(no output)"),
    ("import sys; sys.exit(3)", "[The code exited with status 3.]"),
    ("import sys; sys.exit('bye')", "bye\n[The code exited with status 1.]"),
    ("exit()", "(no output)"),
    ("quit(2)", "[The code exited with status 2.]"),
    ("import os; os._exit(4)", "[The interpreter's process exited with status 4.]"),
    ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()", "late"),
    ("import atexit\n_ = atexit.register(print, 'at exit')", "at exit"),
    ("```python\nprint('fenced')\n```", "fenced"),
    ("    x = 1\n    x", "1"),
    ("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))).__name__", "'A'"),
    ("open('f', 'w').write('x'); import os; os.listdir()", "['f']"),
    ("import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f: f.write('x')", "(no output)"),
]  # fmt: skip


def test_what_is_shown(cells: Cells) -> None:
    results = cells(*(code for code, _ in TEXTS))
    for (code, text), result in zip(TEXTS, results, strict=True):
        assert result.text == text, code
        assert result.error is None
        assert result.metrics["exception"] == 0


TRACEBACKS = [
    (
        "def f(x):\n    return 1 / x\n\nf(0)",
        ['  File "<code>", line 4, in <module>', '  File "<code>", line 2, in f'],
        "ZeroDivisionError: division by zero",
    ),
    ("x = (", ['  File "<code>", line 1'], "SyntaxError: '(' was never closed"),
    (
        "import json\njson.loads('{')",
        ['  File "<code>", line 2, in <module>'],
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    (
        "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('v') from error",
        ['  File "<code>", line 2, in <module>', '  File "<code>", line 4, in <module>'],
        "ValueError: v",
    ),
    ("raise KeyboardInterrupt", ['  File "<code>", line 1, in <module>'], "KeyboardInterrupt"),
    (
        "input('?')",
        ['  File "<code>", line 1, in <module>'],
        "EOFError: input() can't be used here: there is no one to answer. Put the values into the code.",
    ),
    (
        "open('own.py', 'w').write('def g(): 1 / 0')\nimport own\nown.g()",
        ['  File "<code>", line 3, in <module>', '  File "/scratch/own.py", line 1, in g'],
        "ZeroDivisionError: division by zero",
    ),
    ("'\\N{no such}'", ['  File "<code>", line 1'], None),
]


def test_tracebacks_hold_the_models_lines_alone(cells: Cells) -> None:
    results = cells(*(code for code, _, _ in TRACEBACKS))
    for (code, frames, last), result in zip(TRACEBACKS, results, strict=True):
        lines = [re.sub("/[^ ]*/own.py", "/scratch/own.py", line) for line in result.text.splitlines()]
        assert [line for line in lines if line.startswith("  File ")] == frames, code
        assert last is None or lines[-1] == last
        assert result.error is None
        assert result.metrics["exception"] == 1
    assert "    return 1 / x" in results[0].text.splitlines()
    assert "The above exception was the direct cause of the following exception:" in results[3].text


def test_what_else_exceptions_may_be(cells: Cells) -> None:
    deep, group, hostile, module, odd = cells(
        "def f(): return g()\ndef g(): return f()\nf()",
        "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
        "class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E",
        "import no_such_module",
        "raise type('Odd name\\n' * 50, (Exception,), {})('x')",
    )
    assert "more frames]" in deep.text
    assert "RecursionError" in deep.text
    assert len(deep.text.splitlines()) < 60
    assert "ValueError: 1" in group.text
    assert "TypeError: 2" in group.text
    assert "E: <exception str() failed>" in hostile.text
    assert "There is the standard library; nothing else can be installed." in module.text
    assert "Odd name" in odd.text
    results = (deep, group, hostile, module, odd)
    assert {result.metrics["exception"] for result in results} == {1}


def test_a_call_that_is_stopped(cells: Cells) -> None:
    loop, stuck, crash, killed = cells(
        "print('before')\nwhile True:\n    pass",
        "import signal, time\nprint('before')\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\ntime.sleep(60)",
        "print('before')\nimport ctypes; ctypes.string_at(0)",
        "print('before')\nimport os; os.kill(os.getpid(), 9)",
        timeout=1,
    )
    assert (loop.error, stuck.error) == ("timeout", "timeout")
    assert loop.text.startswith("before\n[The code was stopped after 1 s.")
    assert "[The code was stopped after 1 s." in stuck.text
    assert (crash.error, killed.error) == ("tool_error", "tool_error")
    assert crash.text == "before\n[The interpreter was ended by signal 11.]"
    assert killed.text.startswith("before\n[The interpreter was killed;")
    assert all(result.metrics == {"exception": 0, "stopped": 1} for result in (loop, stuck, crash, killed))


def test_processor_time_and_memory_of_all_processes(cells: Cells) -> None:
    fork = "import os, time\nfor _ in range(4):\n    if not os.fork():\n        {}\n        os._exit(0)\ntime.sleep(30)"
    busy, full = cells(
        "while True: pass",
        fork.format("x = bytearray(50 << 20); time.sleep(30)"),
        timeout=40,
        cpu_seconds=1,
        memory_mb=100,
    )
    assert (busy.error, busy.text) == (
        "tool_error",
        "[The code was stopped because it used more than 1 s of processor time.]",
    )
    if "Operation not permitted" not in full.text:  # a single process is all that can be isolated
        assert full.text == "[The code was stopped because it used more than 100 MB of memory.]"


def test_output_is_bounded(cells: Cells) -> None:
    cut, flood, binary = cells(
        "print('a' * 3000 + 'b' * 3000)",
        "while True: print('x' * 1000)",
        "import os; _ = os.write(1, b'\\xff\\x00ok\\n')",
        output_kb=2,
    )
    assert cut.text == "a" * 1024 + "\n[3953 bytes left out]\n" + "b" * 1023
    assert cut.error is None
    assert flood.error == "tool_error"
    assert flood.text.endswith("[The code was stopped because it printed without end.]")
    assert len(flood.text) < 3000
    assert binary.text == "\ufffd\x00ok"


def test_arguments_are_checked(tool: Callable[..., Any]) -> None:
    async def work(toolset: PythonToolset) -> None:
        context = make_episode_context()
        async with toolset.open(context.task, context) as session:
            for arguments in ({}, {"code": 5}, {"code": None}, {"code": "x" * (MAX_CODE + 1)}):
                with pytest.raises(ArgumentsError, match="code"):
                    await session.call(ToolCall("python", arguments))

    tool(work, pool_size=0)


def test_packages_preload_and_readable_paths(cells: Cells, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # isolated code may be another user's
    (tmp_path / "data.txt").write_text("data")
    imported, other, data, preloaded = cells(
        "import yaml; yaml.safe_load('[1, 2]')",
        "import pydantic",
        f"open({str(tmp_path / 'data.txt')!r}).read()",
        "import sys; 'yaml' in sys.modules",
        packages=["PyYAML"],
        preload=["yaml"],
        readable=[tmp_path],
    )
    assert imported.text == "[1, 2]"
    assert "There is the standard library and these packages: PyYAML;" in other.text
    assert data.text == "'data'"
    assert preloaded.text == "True"


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_what_is_installed_in_the_interpreter_is_hidden(cells_of: Cells, isolation: str) -> None:
    site = next((path for path in paths.other_packages([]) if Path(path, "pip").is_dir()), None)
    if site is None:
        pytest.skip("nothing is installed in the interpreter itself")
    codes = (
        f"import sys; sys.path.append({site!r}); import pip",
        f"open({site!r} + '/pip/__init__.py')",
        "import json",
    )
    try:
        hidden, closed, standard = cells_of(*codes, isolation=isolation)
        shown = cells_of(f"open({site!r} + '/pip/__init__.py').readable()", isolation=isolation, readable=[Path(site)])
    except ConfigError as error:
        pytest.skip(str(error))
    assert "pip" in hidden.text
    assert hidden.metrics["exception"] == 1
    assert closed.metrics["exception"] == 1
    assert standard.text == "(no output)"
    assert shown[0].text == "True"


def test_what_can_not_be_preloaded_is_said_at_the_start(cells: Cells) -> None:
    with pytest.raises(
        KeeperError, match="a module can't be preloaded: ModuleNotFoundError: No module named 'no_such'"
    ):
        cells("1", preload=["no_such"])


def test_what_the_model_is_told() -> None:
    fresh = build_python(None, BuildContext(name="python")).spec
    assert fresh.name == "python"
    assert "nothing stays from earlier calls" in fresh.description
    options = PythonOptions(persistent=True, packages=["jsonschema"], timeout=3, memory_mb=99)
    kept = build_code_interpreter(options, BuildContext(name="code_interpreter")).spec
    assert kept.name == "code_interpreter"
    for part in ("stay for later calls", "jsonschema", "3 seconds", "99 MB"):
        assert part in kept.description
    assert build_python(PythonOptions(description="Mine."), BuildContext(name="python")).spec.description == "Mine."


def test_the_self_check_says_what_isolates(any_isolation: str) -> None:
    assert "seccomp" in check()
