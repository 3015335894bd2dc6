"""The parser `qwen3_coder`."""

from __future__ import annotations

import pytest

from toolrl.types import CallError, ToolCall, ToolSpec
from toolrl_common.parsing.coercion import coerce
from toolrl_plugin_qwen.mend import MAX_MENDED
from toolrl_plugin_qwen.options import QwenOptions
from toolrl_plugin_qwen.qwen3_coder import Qwen3CoderParser
from toolrl_plugin_qwen.values import QUOTED

NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
TOOLS = (
    ToolSpec(
        "edit",
        "",
        {
            "type": "object",
            "properties": {"text": {"type": "string"}, "line": {"type": "integer"}, "opts": {"type": "object"}},
        },
    ),
)


def value(text, name="text"):
    return f"<parameter={name}>\n{text}\n</parameter>\n"


def function(*values, name="edit"):
    return f"<function={name}>\n{''.join(values)}</function>"


def call(*values, name="edit"):
    return f"<tool_call>\n{function(*values, name=name)}\n</tool_call>"


def parse(text, *, stopped_by=None, **options):
    turn = Qwen3CoderParser(QwenOptions(**options)).parse(text, tools=TOOLS, stopped_by=stopped_by)
    assert all(item.raw == text[slice(*item.span)] for item in turn.items)
    assert turn.content == "".join(text[slice(*span)] for span in turn.content_spans)
    return turn


def read(text, **options):
    items = parse(text, **options).items
    return [item.arguments if isinstance(item, ToolCall) else item.kind for item in items]


def test_one_call():
    text = f"Edit.\n{call(value('a'), value('3', 'line'))}\nDone."
    turn = parse(text)
    assert [(item.name, item.arguments) for item in turn.items] == [("edit", {"text": "a", "line": 3})]
    assert (turn.content, turn.status) == ("Edit.\n\nDone.", "calls")


@pytest.mark.parametrize(
    "text",
    [
        "see </parameter> here",
        "a </function> b",
        "a </tool_call> b",
        "</parameter></b>",
        "<tool_call> and <function=x>",
        NOW,
        f"first\n{NOW}\nlast",
        call(value("quoted")),
        call(value("quoted")) + "\n" + NOW,
        "def f():\n\treturn {}\n",
    ],
)
def test_values_hold_any_text(text):
    assert read(call(value(text), value("2", "line")) + NOW) == [{"text": text, "line": 2}, {}]
    assert read(call(value(text)) + NOW) == [{"text": text}, {}]


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("<tool_call>\n</tool_call>", "empty", None),
        ("<tool_call>\nhello\n</tool_call>", "malformed", None),
        ("<tool_call>\n<function=>\n</function>\n</tool_call>", "missing_name", None),
        ("<tool_call>\n<function=edit>\njunk\n</function>\n</tool_call>", "malformed", "edit"),
        ("<tool_call>\n<function=edit>\n</function>\njunk\n</tool_call>", "extra_data", "edit"),
        ("<tool_call>\n<function=edit>\n<parameter=text>\n\ud800\n</function>\n</tool_call>", "bad_arguments", "edit"),
        ("<tool_call>\n<function=\udc00>\n</function>\n</tool_call>", "bad_name", None),
    ],
)
def test_errors_stand_between_good_calls(text, kind, name):
    first, wrong, last = parse(f"{NOW}\n{text}\n{NOW}").items
    assert (first.name, last.name) == ("now", "now")
    assert isinstance(wrong, CallError)
    assert (wrong.kind, wrong.name, wrong.raw) == (kind, name, text)
    assert "<function=" in wrong.message


def test_a_truncated_call_never_runs():
    text = call(value("a"))
    for end in range(1, len(text)):
        assert not any(isinstance(item, ToolCall) for item in parse("go " + text[:end]).items), text[:end]


def test_a_stop_inside_a_value_lets_generation_go_on():
    whole = call(value(NOW))
    cut = whole[: whole.index("</tool_call>") + len("</tool_call>")]
    assert parse(cut, stopped_by="</tool_call>").status == "continue"
    assert read(whole, stopped_by="</tool_call>") == [{"text": NOW}]


def test_the_outer_opening_tag_alone_may_be_missing():
    bare = function(value("a"))
    turn = parse(f"So:\n{bare}\n</tool_call>\n{NOW}")
    assert [item.arguments for item in turn.items] == [{"text": "a"}, {}]
    assert turn.items[0].raw == f"{bare}\n</tool_call>"
    assert turn.content.strip() == "So:"
    assert read(f"{bare}{bare}\n</tool_call>") == [{"text": "a"}, {"text": "a"}]
    assert read(f"{bare}\n</tool_call>\n</tool_call>") == [{"text": "a"}, "stray_close"]
    assert read(f"{bare}\n", stopped_by="</tool_call>") == [{"text": "a"}]


def test_several_functions_in_the_same_outer_tags_are_calls():
    first, last = function(value("a")), function(name="now")
    turn = parse(f"x<tool_call>\n{first}\n{last}\n{first}\n</tool_call>y{NOW}")
    assert [(item.name, item.arguments) for item in turn.items] == [
        ("edit", {"text": "a"}), ("now", {}), ("edit", {"text": "a"}), ("now", {}),
    ]  # fmt: skip
    assert turn.content == "xy"
    assert read(f"<tool_call>\n{first}\n{last}\n{NOW}") == [{"text": "a"}, "unclosed", {}]
    assert read(f"<tool_call>\n{first}\n{last}") == [{"text": "a"}, "unclosed"]
    assert read(f"<tool_call>\n{first}\n{last}\n", stopped_by="</tool_call>") == [{"text": "a"}, {}]
    assert read(f"<tool_call>\n{first}\n<function=>\n</function>\n</tool_call>") == [{"text": "a"}, "missing_name"]
    assert read(f"<tool_call>\n{first}\n<function=now>\njunk\n</tool_call>{NOW}") == [{"text": "a"}, "malformed", {}]
    assert read(f"<tool_call>\n{first}\njunk{last}\n</tool_call>{NOW}") == ["extra_data", {}]


def test_values_far_apart_are_no_quotation():
    cut_off = "<tool_call>\n<function=edit>\n<parameter=text>\na\n<tool_call>\n<function=edit>\n<parameter=text>\n"
    far = "x" * (2 * QUOTED) + "\n</parameter>\n</function>\n</tool_call>"
    assert read(cut_off + far) == ["unclosed", {"text": "x" * (2 * QUOTED)}]


def test_repair_mends_objects():
    text = call(value("{'a': True,}", "opts"))
    assert read(text) == [{"opts": "{'a': True,}"}]
    (item,) = parse(text, repair=True).items
    assert (item.arguments, item.recovered) == ({"opts": {"a": True}}, True)


def test_repair_has_an_end():
    long = call(value("{'a': '" + "x" * (MAX_MENDED // 5) + "'}", "opts"))
    turn = parse(long * 6, repair=True)
    assert [item.recovered for item in turn.items] == [True] * 5 + [False]


def test_quotations_are_not_looked_for_without_end():
    quoting = call(value(NOW))
    doubtful = "<tool_call>\n<function=edit>\n<parameter=text>" + "\n<function=x>\n<parameter=text>\n1" * 1000
    text = f"{doubtful}\n</parameter>\n</function>\n</tool_call>{quoting}"
    assert read(quoting) == [{"text": NOW}]
    assert read(text) == [{"text": "1"}, "unclosed", {}, "stray_close"]


ROOT = {"$defs": {"N": {"type": "integer"}, "L": {"$ref": "#/$defs/L"}, "A/B~": {"type": "boolean"}}, "type": "object"}


@pytest.mark.parametrize(
    ("schema", "text", "meant"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "integer"}, "3.0", 3),
        ({"type": "integer"}, "1_000", "1_000"),
        ({"type": "integer"}, "４２", "４２"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "nan", "nan"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, " FALSE\t", False),
        ({"type": "boolean"}, "None", "None"),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object"}, "[1]", "[1]"),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": ["boolean", "null"]}, "None", None),
        ({"type": ["boolean", "null"]}, "True", True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", "5"),
        ({"type": ["integer", "string"]}, '"5"', '"5"'),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": 1}, "1", 1),
        ({"$ref": "#/$defs/N"}, "5", 5),
        ({"$ref": "#/$defs/L"}, "5", "5"),
        ({"$ref": "#/$defs/A~1B~0"}, "true", True),
        ({"$ref": "https://example.com"}, "5", "5"),
        ({"items": {}}, "[1]", [1]),
        ({}, "5", "5"),
        ({"anyOf": 5}, "5", "5"),
    ],
)
def test_coercion(schema, text, meant):
    got, mended = coerce(text, schema, ROOT)
    assert (got, type(got), mended) == (meant, type(meant), False)


def test_parameters_that_no_property_names_follow_the_schema_too():
    tools = (ToolSpec("edit", "", {"type": "object", "additionalProperties": {"type": "number"}}),)
    (item,) = Qwen3CoderParser().parse(call(value("0.5", "x"), value("no", "y")), tools=tools).items
    assert item.arguments == {"x": 0.5, "y": "no"}
