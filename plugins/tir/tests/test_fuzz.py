"""Random and hostile texts: nothing raises, nothing is lost, time is linear."""

from __future__ import annotations

import pytest

from toolrl_plugin_tir.options import TirParserOptions
from toolrl_plugin_tir.parser import TirParser
from toolrl_testing.checks.parsers import check_linear, check_total

PIECES = [
    "```", "```python\n", "\n```python\n", "\n```\n", "```\n", "`", "~~~", "~~~py\n", "\n~~~\n", "````", "\n````\n",
    "py", "python", "python3", "pythonic", "output", "```output\n", "json", " {.a}", "{", "}", "\n", "\n\n", " ", "  ",
    "\t", "    ", "<python>", "</python>", "<PYTHON>", "<calculator>", "</calculator>", "<think>", "</think>",
    "<answer>", "</answer>", "'", '"', "\\", "#", "\\'", "'''", "x", "1+1", "print(1)", "é", "🙂", "\ud800", "\r", "<",
    "</", "- ", "1. ", "> ", "\n```python\nprint(1)\n```\n", "<calculator>1+1</calculator>", "a ```b``` c", "```x```",
    "<python>\nprint('</python>')\n</python>", "```python x```",
]  # fmt: skip
PARSERS = {"default": TirParser(), "strict": TirParser(TirParserOptions(call_ends_thinking=False))}


@pytest.mark.parametrize("name", PARSERS)
def test_random_texts(name):
    check_total(PARSERS[name], PIECES, examples=2_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_many_random_texts(name):
    check_total(PARSERS[name], PIECES, examples=100_000)


UNITS = [
    "`", "~", "``` ", "```\n", "  ~~~\n", "```a```", "x ```\n", "x```a b\n", "```python\n", "```python\nx\n```\n",
    "```py", "```python x\n", "````\n```\n", "```json\n```python\n", "```a\n", "    ```\n", "- ```\n", "<python>",
    "<python>\n", "</python>", "<calculator>", "<calculator>1</calculator>", "<think>", "<think></think>", "'", "'\n",
    "'\"\n", '""', "\\'", "# \n", "#<", "\n", " \n", " ", "<", "</pyth", "``` {", "x" * 1990 + "<python>",
    '"<python>\\"" <calculator>1</calculator>', '"<python>" <calculator>1</calculator>\n',
]  # fmt: skip


def test_hostile_texts_take_linear_time():
    check_linear(PARSERS["default"], UNITS)


@pytest.mark.parametrize("beginning", ["```python\n", "<python>", "<python>\n", "<calculator>", "<think>"])
def test_also_within_a_call_that_never_ends(beginning):
    check_linear(_Within(beginning), UNITS)


class _Within:
    """The parser, with a beginning before each text."""

    def __init__(self, beginning):
        self._beginning = beginning

    def parse(self, text, **given):
        PARSERS["default"].stops(self._beginning + text)
        return PARSERS["default"].parse(self._beginning + text, **given)
