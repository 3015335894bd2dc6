"""<python> and <calculator>."""

from __future__ import annotations

import pytest

from toolrl_plugin_tir.options import TirParserOptions
from toolrl_plugin_tir.parser import TirParser

CALC = "<calculator>1</calculator>"
FENCE = "```python\nx\n```"


def test_calls(parse):
    text = "a <python>\nprint(1)\n</python> b <calculator> 2 *\n3 </calculator>"
    python, calculator = parse(text).items
    assert (python.name, python.arguments, python.span) == ("python", {"code": "print(1)"}, (2, 29))
    assert (calculator.name, calculator.arguments) == ("calculator", {"expression": "2 *\n3"})
    assert parse(text).content == "a  b "


@pytest.mark.parametrize(
    "code",
    [
        "print('</python>')",
        'print("</python>", "<python>")',
        "print('\\'</python>')",
        "s = '''</python>'''",
        "s = ''  # it's '</python'\nt = '</python>'",
        "s = '<calculator>1</calculator>' # ```python\n```python\ny\n```",
        "'" * 2 + '"</python>"',
        'x = "it\'s </python>"',
        "\\\n'</python>'",
    ],
)
def test_tags_in_strings_are_data(code, read):
    assert read(f"<python>\n{code}\n</python>{CALC}") == [code, "1"]
    assert read(f"<python>{code}</python>{CALC}") == [code.lstrip(), "1"]


@pytest.mark.parametrize(
    ("code", "rest"),
    [
        ("print(1)  # it's", ""),
        ('# "quoted', '"'),
        ("print('oops)", ""),
        ("it's", "\nand 's"),
        ("s = '''", "\n'''"),
        ("x = 'a' + 'b", ""),
    ],
)
def test_quotes_that_protect_nothing(code, rest, parse):
    turn = parse(f"<python>{code}</python>{rest}")
    assert [item.arguments for item in turn.items] == [{"code": code}]
    assert turn.content == rest


@pytest.mark.parametrize("run", ["```", "~~~", "`````"])
@pytest.mark.parametrize("word", ["", "python", " py "])
def test_a_fence_inside_the_tags(run, word, read):
    assert read(f"<python>\n{run}{word}\n  if a:\n    b\n{run}\n</python>") == ["if a:\n  b"]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("<Python>a</PYTHON><CALCULATOR>1</Calculator>", ["a", "1"]),
        *((f"<python>{code}</python>", [code]) for code in (
            "```json\na\n```", "```\na", "a\n```\nb\n```", "```\na\n```\nb\n```\nc\n```", "```x``` + 1"
        )),
        ("<python>a", ["!unclosed"]),
        ("<calculator>1", ["!unclosed"]),
        ("<python>a <python>b</python>", ["!unclosed", "b"]),
        (f"<python>a\n{CALC} b", ["!unclosed", "1"]),
        (f"<python>a\n{FENCE}", ["!unclosed", "x"]),
        (f"<python>s = '<calculator>'\n{FENCE}\n<python>b</python>", ["!unclosed", "x", "b"]),
        (f"<calculator>1 {CALC}", ["!unclosed", "1"]),
        ("<calculator>1 <python>b</python>", ["!unclosed", "b"]),
        (f"<calculator>1\n{FENCE}", ["!unclosed", "x"]),
        (f"<calculator>1: {FENCE}{CALC}", ["!unclosed", "!unclosed"]),
        ("<python>s = '```python'\n```python<python>b</python>", ["!unclosed", "b"]),
        ("<calculator>1 ```x``` </python> <output></calculator>", ["1 ```x``` </python> <output>"]),
        ("<python> \n</python><calculator>\n</calculator><python>```\n```</python>", ["!empty"] * 3),
        ("<pythons> < python> <calculator > <output>3</output> a < b > c", []),
    ],
)  # fmt: skip
def test_what_is_read(text, items, read):
    assert read(text) == items


def test_half_a_surrogate_pair(parse, read):
    text = f"<python>s = '\ud800'</python>\n```py\n'\udc00'\n```\n<calculator>\ud800</calculator>{CALC}"
    assert read(text) == ["!bad_arguments"] * 3 + ["1"]
    assert [item.name for item in parse(text).items] == ["python", "python", "calculator", "calculator"]


def test_thinking(parse, read):
    turn = parse(f"<think>{FENCE}{CALC}<python></think>so {CALC}<think>{CALC}</think>!")
    assert [item.arguments for item in turn.items] == [{"expression": "1"}]
    assert (turn.content, turn.reasoning) == ("so !", f"{FENCE}{CALC}<python>{CALC}")
    assert read(f"{CALC}</think>{CALC}", prefilled_thinking=True) == ["1"]
    assert parse("still", prefilled_thinking=True).reasoning == "still"


def test_thinking_that_never_closes(parse, read):
    strict = TirParser(TirParserOptions(call_ends_thinking=False))
    for call, code in ((FENCE, "x"), (f"so: {FENCE}", "x"), (CALC, "1"), ("<python>x</python>", "x")):
        text = f"<think>I\n{call}"
        assert read(text) == [code]
        assert strict.parse(text, tools=()).items == ()
        assert strict.parse(text, tools=()).reasoning == f"I\n{call}"
    assert parse(f"<think>I\n{FENCE}").reasoning == "I\n"
