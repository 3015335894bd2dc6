"""What stands in `eval`'s place: values and arithmetic, and nothing that runs."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

if sys.platform == "win32":
    pytest.skip("answers are scored on Linux and macOS only", allow_module_level=True)

from toolrl_plugin_reasoning_gym import guard

LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=10,
)
HOSTILE = [
    "__import__('os').system('true')",
    "open('x', 'w')",
    "().__class__.__bases__[0].__subclasses__()",
    "[x for x in (1,)]",
    "(lambda: 1)()",
    "f'{1}'",
    "'a' * 10**9",
    "[0] * 10**9",
    "print",
    "x",
    "1 if 1 else 2",
    "exec('1')",
]


@given(LITERALS)
def test_values_are_read_as_eval_reads_them(value: object) -> None:
    assert guard.read_value(repr(value)) == value


@pytest.mark.parametrize("text", ["1 + 2 * 3", "(0x3f << 2) ^ ~7", "-(2 ** 8) // 3 % 5", "1 | 6 & 3", "[1+1, (2,)]"])
def test_arithmetic_is_done(text: str) -> None:
    assert guard.read_value(text) == eval(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_runs_is_refused(text: str) -> None:
    with pytest.raises(guard.UnsafeAnswerError):
        guard.read_value(text, {}, {})


class TestExpressions:
    """What sympy made of a text."""

    @pytest.fixture(autouse=True)
    def _sympy(self) -> None:
        pytest.importorskip("sympy")

    def made(self, text: str) -> str:
        from sympy.parsing.sympy_parser import standard_transformations, stringify_expr

        scope: dict[str, object] = {}
        exec("from sympy import *; from builtins import *", scope)
        return str(stringify_expr(text, {}, scope, standard_transformations))

    @pytest.mark.parametrize(
        "text",
        [
            "2*x + 3",
            "sin(x)**2/3 - sqrt(2)",
            "8/(3 - 8/3)",
            "-x**3*exp(2*x) + C",
            "5!",
            "f(x) + 1",
            "E**pi",
            "log(x, 2)",
        ],
    )
    def test_mathematics_passes(self, text: str) -> None:
        guard.check_expression(self.made(text))

    @pytest.mark.parametrize(
        "text",
        [
            "__import__('os').system('true')",
            "exec('1')",
            "open('x')",
            "sympify('1')",
            "S('1')",
            "sin('1')",
            "Symbol('x', integer=True)",
            "Symbol.mro()",
            "x.__class__",
            "[y for y in (1, 2)]",
            "Lambda(x, x)(eval)",
            "lambda: 1",
            "Function('f')('1')",
            "'a'.join",
            "b'1'",
        ],
    )
    def test_what_runs_is_refused(self, text: str) -> None:
        with pytest.raises((guard.UnsafeAnswerError, SyntaxError)):
            guard.check_expression(self.made(text))


@pytest.mark.parametrize(
    ("event", "arguments", "ends"),
    [
        ("import", ("math",), False),
        ("open", ("x.py", "r", os.O_RDONLY | os.O_CLOEXEC), False),
        ("open", ("x", "w", os.O_WRONLY | os.O_CREAT), True),
        ("open", ("x", None, os.O_RDWR), True),
        ("open", ("x", "r", None), True),
        ("os.system", ("true",), True),
        ("subprocess.Popen", ("true",), True),
        ("socket.connect", (), True),
        ("os.fork", (), True),
        ("something.new", (), True),
    ],
)
def test_the_hook_ends_a_process_that_does_more_than_calculate(
    event: str, arguments: tuple[object, ...], ends: bool
) -> None:
    ended: list[int] = []
    guard._watch(event, arguments, end=ended.append)
    assert bool(ended) is ends
