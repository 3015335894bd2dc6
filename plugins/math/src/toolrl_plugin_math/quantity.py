"""Numbers in text, compared as numbers: 220000.0 equals 220000, `$1,234` equals 1234, and `1/2` equals 0.5.

A line that states a number states no other: `10 + 5 = 15` states 15, `5 or 6` and `3:30` state none.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from toolrl.errors import RewardError
from toolrl.types import Task
from toolrl_plugin_math import typed
from toolrl_plugin_math.truth import gold_number, gold_values

MARK = "####"
MAX_LINE = 1000
"""Characters behind a mark that are read."""
MAX_MARKS = 64
"""Marks that are looked at, from the end of a text."""
DECIMALS = 6
"""Decimals in which two numbers agree if they aren't exact."""
RELATIVE = Fraction(1, 100_000)
"""Relative difference of two such numbers at most; it counts below 0.1."""

_MINUS = "−–-"  # The last is a range elsewhere in a class of characters.
_CURRENCY = r"(?:US\$|[$€£¥₹]|(?:Rs|USD|EUR|GBP|INR)\b\.?\s?)"
# Thousands commas only if all groups have three digits, or those of Indian numbers: 1,00,000.
# All starts at the beginning of digits and is bounded, so that a search takes time linear in the text's length.
_DIGITS = (
    r"(?<!\d)(?:(?:\d{1,3}(?:,\d{3}){1,40}|\d{1,2}(?:,\d{2}){1,60},\d{3}|\d++)(?!,?\d)(?:\.\d++)?|\.\d++)"
    r"(?:[eE][+-]?\d{1,3}(?![\w.]))?"
)
_FRACTION = r"(?<!\d)\d++\s?/\s?\d++(?!/)"
# In running text a sign belongs to the number it touches, and `m^2` and `cm2` hold none.
_NUMBER = re.compile(
    rf"(?<![\^_])(?<!\^\{{)(?<![cmkd]m)(?P<sign>[-−]?)\$?(?P<inner>[-−]?)(?:(?P<fraction>{_FRACTION})|(?P<digits>{_DIGITS}))"
)
_SPACED_MINUS = re.compile(r"(?:\bis|=|:)\s*[-−]\s+\Z")

_MARKS = re.compile("#{4,}")
_FRAC = re.compile(r"\\[dt]?frac\s?\{\s*(\d+)\s*\}\s?\{\s*(\d+)\s*\}")
_TIMES = re.compile(r"\\times|\\cdot|×|·")
_TAG = re.compile(r"</?[A-Za-z]\w*>")
_ENCLOSED = re.compile(r"[\"'“(\[<](.*)[\"'”)\]>]\.?")
_MARKUP = re.compile(r"\*\*|__|`|\\boxed\b|\\(?:text|mathrm|mathbf|textbf)\b|\\[()\[\],;:! ]|[{}]|\\(?=[$%])|~")
_LABEL = re.compile(
    r"\A\s*(?:(?P<answer>(?:the\s+)?(?:final\s+|correct\s+)?answers?(?:\s+is\b\s*:?|\s*[:=]))|[^\W\d_][^\d:=\n]{0,60}[:=])\s*",
    re.IGNORECASE,
)
_ANSWER_HEADING = re.compile(r"\A\s*(?:the\s+)?(?:final\s+|correct\s+)?answer\s*:?\s*\Z", re.IGNORECASE)
_STATED = re.compile(
    rf"\s*(?P<sign>[+{_MINUS}]?)\s*{_CURRENCY}?\s*(?P<inner>[{_MINUS}]?)"
    rf"(?:(?P<whole>\d+)\s+(?P<part>{_FRACTION})|(?P<fraction>{_FRACTION})"
    rf"|(?P<digits>\d{{1,3}}(?:[ \u00a0\u202f]\d{{3}})+(?![\d,])(?:\.\d+)?|{_DIGITS}))"
    r"(?:\s*[*x]\s*10\s?\^\s?(?P<power>[-−]?\d{1,3}))?"
)
_BEGINS = re.compile(rf"\s*[+±≈(\[{_MINUS}]*\s*{_CURRENCY}?\s*[{_MINUS}]?\.?\d")
_SCALES = {"k": 1000, "m": 10**6}
_SCALE = re.compile(r"[kKM](?![\w/^²³])")
"""Scales of one letter; those in words are rewritten before. `5 m` is a unit."""
_WORD = r"[^\W\d_]++(?:['’./][^\W\d_]++)*+(?:[²³]|[23](?!\d)|\s?\^\s?[23](?!\d))?+"
_NOT_A_UNIT = r"(?:or|to|and|plus|minus|times|over|divided|hundred|thousand|million|billion|trillion)\b"
# Behind a number: words, a unit, a remark in parentheses, the sentence's end. Nothing that makes it another number.
_UNIT = re.compile(
    rf"\s*+(?:[%$€£¥₹°]|\^\s?\\circ)?+(?:[\s-]*+(?!{_NOT_A_UNIT}){_WORD})*+\s*+(?:\((?!\s*or\b)[^()]*+\))?+\s*+[$,;]?+\s*+"
    r"(?:[.!?](?:\s.*)?)?+",
    re.DOTALL | re.IGNORECASE,
)


class Stated(NamedTuple):
    """What the text behind a mark states."""

    number: Fraction | None
    """None if the line states no number, or more than one."""


def last_number(text: str) -> Fraction | None:
    """The last number of a text; None if there is none. `$` and `%` beside it are no part of the value."""
    text, found = typed.without_scales(text), None
    for match in _NUMBER.finditer(text):
        found = match
    return None if found is None else _in_text(text, found)


def only_number(text: str) -> Fraction | None:
    """The number of a text that holds exactly one; None for all other texts."""
    found = [match for match in _NUMBER.finditer(text) if not text[match.start() - 1 : match.start()].isalpha()]
    return _in_text(text, found[0]) if len(found) == 1 else None


def whole_number(text: str) -> Fraction | None:
    """The number that a line as a whole states, with or without a currency, a unit, a label or an equation before it;
    None for a line that states none, or more than one."""
    line = _TIMES.sub("*", _FRAC.sub(r" \1/\2", typed.in_text(text[:MAX_LINE])))
    line = _MARKUP.sub("", _TAG.sub("", line)).strip()
    if enclosed := _ENCLOSED.fullmatch(line):
        line = enclosed[1]
    line = _LABEL.sub("", line).strip().rpartition("=")[2].strip()
    match = _STATED.match(line.removeprefix("$") if line.count("$") == 2 else line)
    if match is None:
        return None
    value, rest = _quantity(match), match.string[match.end() :]
    if value is not None and (scale := _SCALE.match(rest)):
        value, rest = value * _SCALES[scale[0].lower()], rest[scale.end() :]
    return value if _UNIT.fullmatch(rest) else None


def marked(text: str) -> Stated | None:
    """What the text states behind its last `####` that is no heading, on one line with it or on the next; None if it
    states nothing there."""
    for mark in list(_MARKS.finditer(text))[: -MAX_MARKS - 1 : -1]:
        lines = text[mark.end() : mark.end() + 2 * MAX_LINE].strip().split("\n", 2)
        line = lines[0]
        if _ANSWER_HEADING.match(line) and len(lines) > 1:
            line = lines[1]
        number = whole_number(line)
        label = _LABEL.match(_MARKUP.sub("", line))
        if number is not None or (label["answer"] if label else _BEGINS.match(_MARKUP.sub("", line))):
            return Stated(number)
    return None


def marked_number(text: str) -> Fraction | None:
    """The number that a text states after `####`; None if it states none, or more than one."""
    found = marked(text)
    return None if found is None else found.number


def stated_number(answer: object) -> Fraction | None:
    """The number that a submitted answer states: a number, the one after `####`, or the last of its text."""
    if (number := gold_number(answer)) is not None:
        return Fraction(number)
    text = str(answer)
    return marked_number(text) if MARK in text else last_number(text)


def true_number(answer: object) -> Fraction | None:
    """The number of a ground truth: a number, its text with or without a unit, a text with one number, or a solution
    that ends with `#### N`. None if it holds none, or several."""
    if (number := gold_number(answer)) is not None:
        return Fraction(number)
    if not isinstance(answer, str):
        return Fraction(str(answer)) if isinstance(answer, Fraction) else None
    if MARK in answer:
        return marked_number(answer)
    stated = whole_number(answer)
    return only_number(answer) if stated is None else stated


def true_numbers(task: Task) -> list[Fraction]:
    """The numbers of a task's ground truths. Raises RewardError if none states one."""
    golds = [number for gold in gold_values(task) if (number := true_number(gold)) is not None]
    if not golds:
        raise RewardError(
            f"task {task.id!r} has {task.answer!r:.80} as answer, which doesn't state one number",
            hint="The reward `gsm8k` needs a number, with or without a unit, or a solution that ends in `#### N`.",
        )
    return golds


def close(one: Fraction, other: Fraction) -> bool:
    """Whether two decimals agree in six decimals, and are relatively close: small numbers aren't all zero."""
    apart = abs(one - other)
    return one == other or (
        round(one, DECIMALS) == round(other, DECIMALS) and apart <= RELATIVE * max(abs(one), abs(other))
    )


def _quantity(match: re.Match[str]) -> Fraction | None:
    value = _value(match["digits"] or match["fraction"] or match["whole"])
    if match["part"] and value is not None:
        part = _value(match["part"])
        value = None if part is None else value + part
    if value is None or (match["sign"] in tuple(_MINUS) and match["inner"]):
        return None
    if match["power"]:
        value *= Fraction(10) ** int(match["power"].replace("−", "-"))
    negative = match["sign"] in tuple(_MINUS) or bool(match["inner"])
    return -value if negative else value


def _in_text(text: str, match: re.Match[str]) -> Fraction | None:
    value = _value(match["digits"] or match["fraction"])
    if value is None or (match["sign"] and match["inner"]):
        return None
    # In `16-3` the dash is an operator, in `= -3` a sign, as in `is - 3`.
    before = text[match.start() - 1 : match.start()] if match.start() else ""
    operator = before.isalnum() or before == ")"
    spaced = _SPACED_MINUS.search(text, max(match.start() - 20, 0), match.start()) is not None
    return -value if ((match["sign"] or match["inner"]) and not operator) or spaced else value


def _value(written: str) -> Fraction | None:
    try:
        return Fraction(re.sub(r"[,\s]", "", written))
    except (ValueError, ZeroDivisionError):
        return None  # more digits than Python reads, or a denominator of 0
