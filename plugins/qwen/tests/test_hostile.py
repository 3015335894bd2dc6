"""Hostile texts: a megabyte of each is read in under half a second, by every parser with every option and end flag.

Each text is one pattern over and over. What is measured is the processor's time, the better of a few runs, so that
other work on the machine doesn't count. In an ordinary run the texts are a tenth as long and the limit is twice as
wide; `nox -s slow` takes them at full length.
"""

from __future__ import annotations

import time

import pytest

from toolrl.parsing import MAX_ITEMS, EndFlags
from toolrl.types import ToolSpec
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_qwen.options import HermesOptions, Qwen3CoderOptions
from toolrl_plugin_qwen.qwen3_coder import Qwen3CoderParser

LENGTH, SECONDS = 1_000_000, 0.5
SHORT = 10
PROPERTIES = {
    "a": {"type": "integer"}, "b": {"type": ["object", "null"]}, "c": {"type": "array"},
    "u": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
}  # fmt: skip
TOOLS = (ToolSpec("f", "", {"properties": PROPERTIES}),)
FLAGS = EndFlags(["answer", "boxed", r"x(.)", r"(?s)y(.*)y"])

HERMES = '<tool_call>{"name": "f", "arguments": {"a": '
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
BARE = '{"name": "f", "arguments": {"a": '
OPENED = "<tool_call>\n<function=f>\n<parameter=a>\n"
OBJECT = "<tool_call>\n<function=f>\n<parameter=b>\n"
CODER = f"{OPENED}1\n</parameter>\n</function>\n</tool_call>\n"

TAGS = [
    "<tool_call>", "</tool_call>", "<tool_call></tool_call>", "<think>", "</think>", "<think></think>x",
    "<think><tool_call>", "</think><think>", "<answer>", "</answer>", "</answer><answer>x", "\\boxed{", "\\boxed{}",
    "<tool_", "<", "</", "<function=", "<function=f>", "\n<function=f>\n", "</function>", "\n</function>\n",
    "<parameter=", "<parameter=a", "\n<parameter=a>\n", "</parameter>", "</parameter>\n<parameter=a>",
    "\n</tool_call>\n<tool_call>", "\n<tool_call>\n<function=f>\n</function>\n", CALL, OPENED, CODER,
    "</parameter></function></tool_call>", "</parameter> ", "```", "```json\n", "```\n",
]  # fmt: skip
JSON = [
    "{", "}", "[", "]", "}{", "[{", '{"a":', '{"a":{', '"', "'", "\\", '\\"', '"\\', "\\'", '\\\\"', ",", ":", "[,",
    "1,", "9", "1e9", "1e999,", "true,", "NaN,", "None,", " ", "\n", "\r\n", "\u00a0", " \n", "\x00", "\ud800",
    "\\ud800", "\\ud83d\\ude00", "\\u", "é", "😀", "a", "x y", "{'a': ", '<tool_call>{"a":"', "<tool_call>{'a': '",
    '<tool_call>{"a":"\n"', '<tool_call>{"a": 1}x', f"{BARE}", f'{BARE}"', f'{BARE}"\n', '{"name": "', '{"name": \n',
    f"{BARE}1,}}}}\n", f"{BARE}1}}}}\n", '{"name": "g", "arguments": {\n', f"```json\n{BARE}1}}}}\n```\n",
]  # fmt: skip
HEADS = ["", "<think>", HERMES, f'{HERMES}"', f"{HERMES}[", "<tool_call>{'a': '", '<tool_call>{"name": "', BARE,
         "<tool_call>\n<function=", "<tool_call>\n<function=f>\n<parameter=", OPENED, f'{OBJECT}{{"x": ',
         f"{OBJECT}{{'x': '"]  # fmt: skip
BUILT = {
    "many calls with values in long lists": ("<tool_call>{'a':[", "1,", 4000, ""),
    "many calls with strings of control characters": ("<tool_call>{'a': [", "'\x00\x00\x00\x00',", 500, ""),
    "many calls with strings that are cut off": ('9<tool_call>{"a": "\n', "\x00", 20_000, "<tool_call>{'a': '"),
    "many calls with quotes in quotes": ("<tool_call>{'a':[", '\'""""\',', 500, ""),
    "values with functions in them that never end": (f'{OBJECT}{{"x": ', "\\u12", 3, "''"),
    "values with a function in each and one end": (f"{OPENED}\n<function=f>\n", "\n<parameter=a>\n", 30, "</function>"),
    "values with functions, half of which end": (OPENED, "\n<function=f>\n<parameter=a>\n", 30, "</function>" * 15),
    "quoted calls side by side": (OPENED, f"{CODER}x", 20, "\n<parameter=a>\n"),
    "values before long whitespace": (OPENED, "\n<function=f>\n<parameter=a>\n", 200, "</parameter>" + " " * 300_000),
    "objects in values": (OBJECT, "{'x': None,}\n</parameter>\n<parameter=b>\n", 300, "</function></tool_call>"),
    "broken bare calls between thinking": ('{"name": "f", "arguments": {"a": "<think></think>', "1", 1, ""),
    "calls before thinking that never ends": (CALL, "<think>a", 6, ""),
    "functions before thinking that never ends": ("<function=f></function>", "<think></thin", 6, ""),
    "long names": (f'<tool_call>{{"name": "{"n" * 100_000}", "arguments": ', "[", 1000, "}"),
    "long names of parameters": (f"<tool_call>\n<function=f>\n<parameter={'n' * 100_000}", ">", 1, "\n"),
    "deep values in many calls": ("<tool_call>", "[", 3000, ""),
    "deep values that end": (HERMES, '{"a":' * 100 + "1" + "}" * 100 + ",", 10, "</tool_call>"),
    "surrogates in many calls": (HERMES + '"', "\\ud83d\\ude00", 500, '"}}</tool_call>'),
}
"""Patterns with a structure: what begins it, what is repeated in it and how often, what ends it."""

PARSERS = {
    "hermes": HermesParser(),
    "hermes lenient": HermesParser(HermesOptions(repair=True, lenient_json=True)),
    "hermes strict thinking": HermesParser(HermesOptions(repair=True, lenient_json=True, call_ends_thinking=False)),
    "qwen3_coder": Qwen3CoderParser(),
    "qwen3_coder lenient": Qwen3CoderParser(Qwen3CoderOptions(repair=True, lenient_json=True)),
}


def texts(length):
    for unit in (*TAGS, *JSON):
        yield repr(unit), unit * (length // len(unit))
    for head in HEADS[1:]:
        for unit in (*TAGS, *JSON):
            yield f"{unit!r} after {head!r}", head + unit * (length // len(unit))
    for name, (head, unit, count, tail) in BUILT.items():
        piece = head + unit * count + tail
        yield name, (piece * max(1, length // len(piece)))[:length]


def seconds(parser, text):
    """Processor time of reading a turn and looking for its end flags."""
    start = time.process_time()
    turn = parser.parse(text, tools=TOOLS)
    flagged = FLAGS.read(turn, text)
    spent = time.process_time() - start
    assert len(turn.items) <= MAX_ITEMS + 1
    assert len(flagged.items) <= MAX_ITEMS + 1
    return spent


def slow_ones(parser, length, limit):
    """The texts that took longer than the limit three times in a row."""
    found = {}
    for name, text in texts(length):
        if (best := seconds(parser, text)) > limit:
            best = min(best, seconds(parser, text), seconds(parser, text))
            if best > limit:
                found[name] = best
    return found


@pytest.mark.parametrize("name", PARSERS)
def test_hostile_texts_take_little_time(name):
    assert not slow_ones(PARSERS[name], LENGTH // SHORT, SECONDS / SHORT * 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_a_megabyte_takes_half_a_second(name):
    assert not slow_ones(PARSERS[name], LENGTH, SECONDS)
