"""The evaluator against fractions, and what a model reads."""

from __future__ import annotations

import asyncio
import decimal
import math
import random
import re
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import ToolError
from toolrl.protocols import BuildContext, EpisodeContext
from toolrl.tools import as_toolset
from toolrl.types import Task, ToolCall
from toolrl_plugin_calculator.evaluate import ExpressionEvaluator
from toolrl_plugin_calculator.options import CalculatorOptions
from toolrl_plugin_calculator.tool import build

EVALUATE = ExpressionEvaluator()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * 34", "408"),
        ("-2**2", "-4"),
        ("-7 % 3", "2"),
        ("7.5 % 2", "1.5"),
        # Exact decimals and rationals.
        ("0.1 + 0.2", "0.3"),
        ("2**-3", "0.125"),
        ("1/3", "0.333333333333"),
        ("1e-7", "0.0000001"),
        (".5 + 3.", "3.5"),
        ("10**-20/3", "3.33333333333e-21"),
        ("-0.0", "0"),
        ("0**0", "1"),
        # Roots and irrational values.
        ("sqrt(16)", "4"),
        ("sqrt(2)", "1.41421356237"),
        ("sqrt(2)**2", "2"),
        ("8**(1/3)", "2"),
        ("4**-0.5", "0.5"),
        ("sqrt(2)*sqrt(8) - 4", "0"),
        ("sin(pi)", "0"),
        ("tan(pi/4)", "1"),
        ("sin(pi/6)", "0.5"),
        ("exp(100)", "2.68811714182e43"),
        ("log(8, 2)", "3"),
        ("log10(1000)", "3"),
        ("ln(e)", "1"),
        ("floor(log10(1000))", "3"),
        # Functions.
        ("abs(-3.5)", "3.5"),
        ("round(2.5)", "3"),
        ("round(2.675, 2)", "2.68"),
        ("round(1250, -2)", "1300"),
        ("round(pi, 4)", "3.1416"),
        ("floor(sqrt(2)**2)", "2"),
        ("min(3, 1/2, 2)", "0.5"),
        ("max(sqrt(2), 1.4)", "1.41421356237"),
        ("gcd(12, 18)", "6"),
        ("factorial(20)", "2432902008176640000"),
        ("comb(52, 5)", "2598960"),
        # What models write besides.
        ("12 × 34", "408"),
        ("2^10", "1024"),
        ("3² + 2³", "17"),
        ("2π", None),
        ("12 x 34", "408"),
        ("$1,234.50 * 2", "2469"),
        ("1,234,567 + 1", "1234568"),
        ("15%", "0.15"),
        ("200 * 15%", "30"),
        ("20% of 50", "10"),
        ("17 % 5", "2"),
        ("5!", "120"),
        ("12*34 = ?", "408"),
        ("007 + 1", "8"),
        ("math.sqrt(16) + math.pi*0", "4"),
        ("12\n* 34", "408"),
    ],
)
def test_values(expression: str, value: str | None) -> None:
    if value is None:
        with pytest.raises(ToolError):
            EVALUATE(expression)
    else:
        assert EVALUATE(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("9**9**9", "too large"),
        ("factorial(10**10)", "too large"),
        ("comb(10**9, 10**8)", "too large"),
        ("1e999999999", "out of range"),
        ("round(2, 10**6)", "out of range"),
        ("1 << 10**9", "isn't arithmetic"),
        ("9" * 1001, "at most 1000"),
        ("(" * 400 + ")" * 400, "nested"),
        ("sqrt(" * 150 + "1" + ")" * 150, "nested"),
        ("1/0", "Division by zero"),
        ("0**-1", "Division by zero"),
        ("tan(pi/2)", "no value"),
        ("sin(10**900)", "up to"),
        ("(-8)**(1/3)", "no real value"),
        ("log(2, 1)", "not 1"),
        ("log(2, 1 + 1e-400)", "Division by zero"),
        ("sqrt(-1)", "square root"),
        ("sqroot(2)", "no function 'sqroot'; between factors write *"),
        ("12,34", "isn't arithmetic"),
        ("1 < 2", "isn't arithmetic"),
        ("(3 + 4", "Can't read"),
        ("asin(2)", "between -1 and 1"),
        ("factorial(-1)", "from 0 on"),
        ("floor(exp(100))", "last whole digit"),
        ("50% + 3", "unclear"),
        ("10 % -3", "unclear"),
        ("x + 1", "'x' has no value"),
        ("sqrt(1, 2)", "doesn't take 2 arguments: write sqrt(16)"),
        ("sqrt(1,234)", "write 1234"),
        ("max(1,000,2)", "Write 1000"),
        ("max(3, min(1,234,050, 2))", "Write 1234050"),
        ("3 +", "to its end"),
        ("1 2", "Can't read"),
        ("'a' * 9", "is no number"),
        ("__import__('os')", "no function '__import__'"),
        ("1\x00", "Can't read"),
        ("2⁴", "isn't understood"),
        ("ｐｉ * 1.25", "isn't understood"),
        ("", "empty"),
        ("   ", "empty"),
    ],
)
def test_errors_say_what_is_wrong(expression: str, message: str) -> None:
    with pytest.raises(ToolError, match=re.escape(message)) as caught:
        EVALUATE(expression)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        # Everyday powers, whose exact values have thousands of digits.
        ("1000*(1+0.05/365)**3650", "≈ 1648.66481377"),
        ("1.01**365", "≈ 37.7834343329"),
        ("1.01^-365", "0.0264666253255"),
        ("0.99**1000", "≈ 0.0000431712474107"),
        ("(1 + 1/365)**365", "2.71456748202"),
        ("(1 + 1e-40)**(10**40)", "≈ 2.71828182846"),
        ("(-1.01)**365", "≈ -37.7834343329"),
        ("round(1000*(1 + 0.05/365)**3650, 2)", "1648.66"),
        ("200000*(0.04/12)*(1+0.04/12)**360/((1+0.04/12)**360-1)", "954.830590931"),
        # Factorials and combinations, roots and logarithms on the way.
        ("factorial(1000)/factorial(998)", "≈ 999000"),
        ("1 - factorial(365)/factorial(342)/365**23", "0.507297234324"),
        ("log10(2**5000)", "≈ 1505.14997832"),
        ("exp(2000)/exp(1999)", "2.71828182846"),
        ("sqrt(10**500)", "1e250"),
        # In full or not.
        ("1.05**10", "1.62889462677744140625"),
        ("2**100", "1267650600228229401496703205376"),
        ("2**1000", "≈ 1.07150860719e301"),
        ("comb(1000, 500)", "≈ 2.70288240945e299"),
        ("2**-100", "≈ 7.88860905221e-31"),
        ("10**300/3", "3.33333333333e299"),
        ("1e-200*1e-200", "1e-400"),
        ("≈ 37.78 * 2", "75.56"),
    ],
)
def test_numbers_of_many_digits_are_rounded_and_said_to_be(expression: str, value: str) -> None:
    assert EVALUATE(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(10**1200 + 1) - 10**1200", "Too few digits are left"),
        ("1.0001**10000 - 1.0001**10000", "Too few digits are left"),
        ("2**5000 % 7", "last whole digit"),
        ("(1 + 1e-20*pi)**(10**20)", "exponent is too large"),
        ("2**5000", "too large or too small: at most 1000 digits are kept. It is about 1.41246703214e1505."),
        ("0.5**(10**7)", "too large or too small"),
    ],
)
def test_digits_that_are_not_known_are_not_shown(expression: str, message: str) -> None:
    with pytest.raises(ToolError, match=re.escape(message)):
        EVALUATE(expression)


@settings(deadline=None)
@given(st.decimals("0.9", "1.1", places=6), st.integers(1, 5000), st.integers(1, 30))
def test_rounded_powers_agree_with_decimal(base: decimal.Decimal, exponent: int, precision: int) -> None:
    shown = ExpressionEvaluator(CalculatorOptions(precision=precision))(f"{base}**{exponent}")
    value = decimal.Context(prec=60, Emin=-(10**6)).power(base, exponent)
    error = abs(Fraction(shown.removeprefix("≈ ")) - Fraction(value))
    assert error * 2 * 10**precision <= abs(Fraction(value)) * 10
    assert len(shown) < 100


def test_calls_in_several_threads_dont_disturb_each_other() -> None:
    asked = ["sqrt(2)", "factorial(3000)/factorial(2999)", "(1 + 1e-40)**(10**40)", "sin(1)"] * 50
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(EVALUATE, asked)) == [EVALUATE(expression) for expression in asked]


def shown_or_refused(expression: str) -> str:
    try:
        return EVALUATE(expression)
    except ToolError as error:
        return str(error)


def test_the_work_of_an_expression_is_bounded_by_its_length() -> None:
    """The costliest expressions of 1000 characters: each ends or is refused, and no number outgrows the limit."""
    for piece in ("99!*", "9**999*", "sin(1e5)*", "1/7**99+", "exp(999)*", "comb(999,499)*", "9.9**.9*",
                  "log(9**999,3)+"):  # fmt: skip
        expression = (piece * 1000)[: 1000 // len(piece) * len(piece) - 1]
        shown = shown_or_refused(expression)
        assert len(shown) <= 2100
        assert shown[0].isdigit() or "too large" in shown


def test_options_bound_and_show() -> None:
    assert ExpressionEvaluator(CalculatorOptions(precision=3))("2/3") == "0.667"
    assert ExpressionEvaluator(CalculatorOptions(precision=30))("sqrt(2)") == "1.41421356237309504880168872421"
    fifty = ExpressionEvaluator(CalculatorOptions(precision=50))
    assert fifty("sin(1)").startswith("0.841470984807896506652502321630298999622563060798")
    assert ExpressionEvaluator(CalculatorOptions(precision=1))("1234.5/7") == "176"
    with pytest.raises(ToolError, match="at most 20 digits"):
        ExpressionEvaluator(CalculatorOptions(max_digits=20))("10**30")
    with pytest.raises(ToolError, match="at most 5 are read"):
        ExpressionEvaluator(CalculatorOptions(max_length=5))("1 + 11")


# Against Python's own numbers.

_NUMBERS = st.one_of(
    st.integers(0, 10**9).map(str),
    st.decimals(0, 10**6, allow_nan=False, allow_infinity=False, places=4).map(lambda d: f"{d:f}"),
)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> tuple[str, Fraction]:
    """A text with its value by `fractions`; quotients by zero are drawn again."""
    if depth == 0 or draw(st.booleans()):
        text = draw(_NUMBERS)
        return text, Fraction(text)
    left, a = draw(expressions(depth - 1))
    if draw(st.integers(0, 5)) == 0:
        return f"-({left})", -a
    right, b = draw(expressions(depth - 1))
    symbol = draw(st.sampled_from(["+", "-", "*", "/", "//", "%"] if b else ["+", "-", "*"]))
    value = eval(f"a {symbol} b", {"a": a, "b": b})
    return f"({left}) {symbol} ({right})", Fraction(value)


@settings(deadline=None)
@given(expressions())
def test_rational_arithmetic_is_exact(case: tuple[str, Fraction]) -> None:
    text, value = case
    assert EVALUATE.value(text) == value


@settings(deadline=None)
@given(st.fractions(max_denominator=10**6), st.integers(1, 40))
def test_shown_digits_are_those_of_the_value(value: Fraction, precision: int) -> None:
    shown = ExpressionEvaluator(CalculatorOptions(precision=precision))(f"({value.numerator})/({value.denominator})")
    if "e" not in shown:
        assert not shown.endswith((".", "-0"))
        assert "." not in shown or not shown.endswith("0")
    error = abs(Fraction(shown) - value)
    assert error * 2 * 10**precision <= abs(value) * 10  # half a unit of the last digit, at worst after a leading 1
    if value.denominator == 1:
        assert shown == str(value.numerator)


@settings(deadline=None)
@given(st.decimals(-(10**9), 10**9, allow_nan=False, allow_infinity=False, places=12))
def test_decimals_that_end_come_back_in_full(number: decimal.Decimal) -> None:
    shown = EVALUATE(f"{number:f}")
    assert Fraction(shown) == Fraction(number)
    assert "e" not in shown.lower()


@pytest.mark.parametrize("name", ["sin", "cos", "tan", "asin", "acos", "atan", "exp", "sqrt", "log", "log2", "log10"])
def test_functions_agree_with_the_standard_library(name: str) -> None:
    chance = random.Random(name)
    for _ in range(50):
        x = chance.uniform(0.01, 0.99)
        assert float(EVALUATE(f"{name}({x:.10f})")) == pytest.approx(getattr(math, name)(float(f"{x:.10f}")), rel=1e-11)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789.,+-*/%^()!=$ exsqrtpilogmax_'[]{}:<>&|~@#\\\n×²", max_size=60))
def test_any_text_gives_a_value_or_a_message(text: str) -> None:
    shown = shown_or_refused(text)
    assert shown
    assert re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", shown) or " " in shown


# As a tool.


def answer(arguments: dict[str, Any], **options: Any) -> str:
    context = BuildContext(name="calculator")
    toolset = as_toolset(build, CalculatorOptions(**options), context)
    task = Task("t", ())

    async def run() -> str:
        await toolset.start()
        async with toolset.open(task, EpisodeContext("t#0", task, random.Random(0))) as session:
            result = await session.call(ToolCall("calculator", arguments))
        await toolset.stop()
        return result.text

    return asyncio.run(run())


def test_the_tool_answers() -> None:
    assert answer({"expression": "12 * 34"}) == "408"
    assert answer({"expression": "1/3"}, precision=4) == "0.3333"
    with pytest.raises(ToolError, match="Division by zero"):
        answer({"expression": "1/0"})


def test_the_description_for_the_model() -> None:
    spec = build(CalculatorOptions(description="Calculates."), BuildContext(name="calculator")).spec
    assert spec.name == "calculator"
    assert spec.description == "Calculates."
    assert list(spec.parameters["properties"]) == ["expression"]
    assert spec.parameters["required"] == ["expression"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "expression", ["1if 1else 2", r'"\d" + 1', "1or 2", "0x1for x in y", "2.in 3", "1is 1", "1and 2"]
)
def test_pythons_warnings_of_odd_spellings_reach_no_log(expression: str) -> None:
    with pytest.raises(ToolError, match="isn't arithmetic|is no number|Can't read"):
        EVALUATE(expression)
