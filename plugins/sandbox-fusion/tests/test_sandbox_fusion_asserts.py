"""Cases that are Python statements, against the local server: a program passes them only by being right."""

from __future__ import annotations

import asyncio
import functools
import sys

import pytest

pytest.importorskip("toolrl_plugin_python", reason="the server needs the plugin `python`")

from toolrl.errors import ConfigError, DataError
from toolrl.types import Score
from toolrl_plugin_sandbox_fusion import asserts
from toolrl_plugin_sandbox_fusion.options import SandboxRewardOptions
from toolrl_plugin_sandbox_fusion.reward import SandboxReward
from toolrl_plugin_sandbox_fusion.runner import ProgramRunner
from toolrl_plugin_sandbox_fusion.serve import SandboxServer
from toolrl_testing import make_build_context, make_episode, make_task


@functools.cache
def runner() -> ProgramRunner:
    try:
        return ProgramRunner(python=sys.executable, languages=["python"])
    except ConfigError as error:
        pytest.skip(f"programs can't be isolated here: {error}")


def score(program: str, *statements: str) -> Score:
    async def ask() -> Score:
        async with SandboxServer(runner()) as server:
            reward = SandboxReward(
                SandboxRewardOptions(sandbox_fusion_url=server.url, timeout=5.0), make_build_context()
            )
            task = make_task(answer={"assert_case": list(statements)})
            return await reward.score(make_episode(f"```python\n{program}\n```", task=task))

    return asyncio.run(ask())


ASSERTS = ("assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert not add(0, 0)")
FORGERIES = {
    "exit": "exit()",
    "os exit": "import os\nos._exit(0)",
    "system exit": "raise SystemExit",
    "exec": "import os\nos.execv('/bin/true', ['true'])",
    "hook": "import sys\nsys.excepthook = lambda *a: None\nadd = None",
    "at exit": "import atexit, os\natexit.register(os._exit, 0)\nadd = None",
    "equal to all": "class Any:\n    def __eq__(self, other): return True\n    def __bool__(self): return False\n"
    "def add(a, b): return Any()",
    "int that is equal to all": "class Any(int):\n    def __eq__(self, other): return True\n"
    "def add(a, b): return Any(7)",
    "reads its file": "import re, sys\ndef add(a, b):\n    text = open(sys.argv[0]).read()\n"
    "    return int(re.search(rf'add\\({a}, {b}\\) == (\\d+)', text)[1])",
    "reads its input": "import gc\ndef add(a, b):\n"
    "    seen = [o for o in gc.get_objects() if isinstance(o, dict) and 'statements' in o]\n"
    "    return seen[0]['statements']",
    "prints a verdict": "import os\nos.write(1, b'{\"passed\": true}\\n')\n"
    "os.write(3, b'{\"passed\": true}')\nos._exit(0)",
    "prints a result": 'import os\nos.write(1, b\'[{"passed": true}, {"value": true}]\')\nos._exit(0)',
    "builtins": "import builtins\nbuiltins.AssertionError = type('E', (BaseException,), {})\n"
    "def add(a, b): builtins.bool = lambda x: True; return a",
    "claims an object": "import os, sys\nos.write(3, b'')\n"
    "class Same:\n    __class__ = int\n    __index__ = __len__ = lambda s: 3\n    __eq__ = lambda s, o: True\n"
    "    __sub__ = __rsub__ = lambda s, o: 0\ndef add(a, b): return Same()",
    "answers for the operations": "import json, os, sys\n"
    "def add(a, b):\n    f = sys._getframe()\n"
    "    while 'request' not in f.f_locals: f = f.f_back\n"
    "    said = [{'value': 7, 'after': [None, 3], 'passed': True, 'operations': []}\n"
    "            for _ in f.f_locals['request']['operations']]\n"
    "    for fd in (1, 3, 4):\n        try: os.write(fd, json.dumps(said).encode())\n        except OSError: pass\n"
    "    os._exit(0)",
    "too deep to read": "def add(a, b):\n    x = []\n    for _ in range(900): x = [x]\n    return x",
    "too large to compute with": "def add(a, b): return 1 << 3000000",
    "raises the test's own error": "def add(a, b): raise AssertionError",
    "raises to the end": "class Stop(BaseException): pass\ndef add(a, b): raise Stop",
    "frames": "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n"
    "        f.f_globals['__debug__'] = False; f = f.f_back\n    return None",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_program_that_is_wrong_passes_nothing(name: str) -> None:
    # The honest wrong answer False passes the third assert, as anything false does.
    assert score(FORGERIES[name], *ASSERTS[:2]).value == 0.0


HONEST = {
    "function": ("def add(a, b): return a + b", ASSERTS),
    "named like a builtin": ("def sum(a, b): return a + b", ("assert sum(1, 2) == 3",)),
    "tolerance": ("def half(x): return x / 2", ("import math\nassert math.isclose(half(1), 0.5)",)),
    "module without import": ("def half(x): return x / 2", ("assert math.isclose(half(1), 0.5)",)),
    "loop": ("def square(x): return x * x", ("for i in range(50):\n    assert square(i) == i ** 2",)),
    "variables": ("def pair(x): return (x, x)", ("a, b = pair(3)\nassert a == b == 3",)),
    "sets and keys": ("def f(): return {(1, 2): {3}, None: b'x'}", ("assert f() == {(1, 2): {3}, None: b'x'}",)),
    "exception": (
        "def f(x):\n    if x < 0: raise ValueError('negative')\n    return x",
        ("try:\n    f(-1)\nexcept ValueError as e:\n    assert 'negative' in str(e)\nelse:\n    assert False",),
    ),
    "own exception": (
        "class Bad(KeyError): pass\ndef f(): raise Bad()",
        ("try:\n    f()\n    raise AssertionError\nexcept KeyError:\n    pass",),
    ),
    "class": (
        "class Stack:\n    def __init__(self): self.items = []\n"
        "    def push(self, x): self.items.append(x); return self\n"
        "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)",
        ("s = Stack()\ns.push(1)\ns.push(2)\nassert len(s) == 2 and s.pop() == 2\nassert s.items == [1]",),
    ),
    "method of Solution": (
        "class Solution:\n    def two(self, nums): return [0, 1]",
        ("assert Solution().two([1, 2]) == [0, 1]",),
    ),
    "in place": ("def order(xs): xs.sort()", ("xs = [3, 1, 2]\norder(xs)\nassert xs == [1, 2, 3]",)),
    "generator": ("def up(n):\n    yield from range(n)", ("assert list(up(3)) == [0, 1, 2]",)),
    "objects in a list": (
        "class P:\n    def __init__(self, x): self.x = x\ndef make(n): return [P(i) for i in range(n)]",
        ("assert [p.x for p in make(3)] == [0, 1, 2]",),
    ),
    "builtin as argument": ("def use(f, xs): return [f(x) for x in xs]", ("assert use(str, [1]) == ['1']",)),
    "types": ("def f(): return [1]", ("assert isinstance(f(), list)", "assert type(f()) is list")),
    "prints": ("print('hello')\ndef f():\n    print('more')\n    return 1", ("assert f() == 1",)),
    "humaneval": (
        "def inc(x): return x + 1",
        ("def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(-1) == 0\ncheck(inc)",),
    ),
    "counter": ("def f(): return ['a', 'b', 'a']", ("assert Counter(f()) == Counter({'a': 2, 'b': 1})",)),
    "sets of texts": ("def f(xs): return xs | {'z'}", ("assert f({'a', 'b', 'c', 'd'}) == {'a', 'b', 'c', 'd', 'z'}",)),
    "not a number": ("def f(x): return x != x", ("assert f(float('nan'))",)),
    "leetcode": (
        "class Solution:\n    def pushes(self, word, times=1): return len(word) * times",
        ("my_solution = Solution()\ntest_input = {'word': 'abc', 'times': 2}\n"
         "assert my_solution.pushes(**test_input) == 6",),
    ),
    "objects as arguments": (
        "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n"
        "def total(pairs): return sum(p.a + p.b for p in pairs)\n"
        "def by_name(pairs): return {name: p.a for name, p in pairs.items()}",
        ("assert total([Pair(1, 2), Pair(3, 4)]) == 10", "assert total((Pair(1, 2),)) == 3",
         "assert by_name({'x': Pair(1, 2)}) == {'x': 1}",
         "root = Pair(Pair(1, 2), None)\nroot.b = Pair(3, 4)\nassert total([root.a, root.b]) == 10"),
    ),
    "long round trips": (
        "def encode(s): return s[::-1]\ndef decode(s): return s[::-1]",
        ("from random import randint\nfor _ in range(100):\n    s = 'ab' * randint(1, 9)\n"
         "    t = encode(s)\n    assert decode(t) == s",),
    ),
    "long numbers": (
        "def f(x): return x / 3\ndef spread(x): return [x, x, -x]",
        ("import math\nfor x in range(40):\n    assert math.fabs(f(x) - x / 3) < 1e-6 and round(f(x), 2) <= x\n"
         "    assert sorted(spread(x)) == [-x, x, x]\n    assert len(set(spread(x))) == (2 if x else 1)",),
    ),
    "huge": ("def f(n): return 2 ** n", ("assert f(5000) == 2 ** 5000",)),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_a_right_program_passes(name: str) -> None:
    program, statements = HONEST[name]
    found = score(program, *statements)
    assert found.metrics["pass_rate"] == 1.0, found.metrics


def test_each_status() -> None:
    statements = ("assert f(1) == 1", "assert f(2) == 1", "assert f(3) == 3", "assert f(4) == 4")
    program = "def f(x):\n    if x == 3: raise KeyError(x)\n    while x == 4: pass\n    return x"
    metrics = score(program, *statements).metrics
    assert {name for name, share in metrics.items() if share == 0.25} == {
        "pass_rate", "wrong", "runtime_error", "timeout",
    }  # fmt: skip


@pytest.mark.parametrize("result", ["[object()]", "[[object()]]", "object()", "{object(): 1}", "(x for x in [object])"])
def test_results_that_a_test_did_not_expect_are_a_failed_case_and_not_an_error_in_the_data(result: str) -> None:
    statements = (
        "assert g(set(f(1))) == 3",
        "x = f(1)\nassert g({'a': x, 'b': set(x)}, k=x) == 3",
        "assert f(1) + 1 == 2",
    )
    assert score(f"def f(x): return {result}\ndef g(*a, **k): return 4", *statements).value == 0.0


@pytest.mark.parametrize("statement", ["import no_such_module\nassert f(1) == 1", "import os\nf(1)\nos._exit(0)"])
def test_statements_that_fail_by_themselves_are_named(statement: str) -> None:
    with pytest.raises(DataError, match=r"assert_case\[0\]: .*(no_such_module|no verdict)"):
        score("def f(x): return 1", statement)


def test_an_assert_that_fails_fails_whatever_comes_after_it() -> None:
    # Asserts whose results aren't known yet are gone past, to ask for all results at once.
    statement = "for x in range(30):\n    assert sorted(f(x)) == [x]"
    metrics = score("def f(x): return [x + (x == 29)]", statement, "assert sorted(f(29)) == [30]").metrics
    assert metrics["wrong"] == metrics["pass_rate"] == 0.5


@pytest.mark.parametrize(
    "statement", ["assert True", "assert 1 + 1 == 2", "def f(", "assert f(lambda x: x) == 1", "x = 3"]
)
def test_statements_that_judge_nothing_are_invalid_data(statement: str) -> None:
    with pytest.raises(DataError, match=r"assert_case\[1\]") as error:
        score("def f(x): return 1", "assert f(1) == 1", statement)
    assert error.value.where == "task 'task-0'"


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("assert add(1, 2) == 3", ["add"]),
        ("assert abs(area(2) - 12.5) < 0.1", ["area"]),
        ("assert math.isclose(add(1, 2), 3)", ["add"]),
        ("assert isclose(factorial(3), 6)", ["factorial"]),
        ("assert sorted(f([2, 1])) == [1, 2]", ["f"]),
        ("from math import pi\nassert area(1) == pi", ["area"]),
        ("assert max(2, 3) == 3", ["max"]),
    ],
)
def test_the_names_that_are_the_programs(statement: str, names: list[str]) -> None:
    assert asserts.tested_names(statement) == names
