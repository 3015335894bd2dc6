"""Files of cases."""

from __future__ import annotations

import json

import pytest

from toolrl.errors import DataError
from toolrl.parsing import EndFlags
from toolrl.parsing.cases import differences, read_cases, run_case
from toolrl.types import CallError, ParsedTurn, ToolCall


class Scripted:
    """A parser that gives what it was told to and remembers what it was given."""

    def __init__(self, *items, content=""):
        self.turn = ParsedTurn(items=items, content=content)
        self.given = {}

    def parse(self, text, **given):
        self.given = {"text": text, **given}
        return self.turn


def one_case(tmp_path, **fields):
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({"id": "c", "text": "", **fields}) + "\n\n", encoding="utf-8")
    (case,) = read_cases(path)
    return case


def check(tmp_path, parser, **fields):
    case = one_case(tmp_path, **fields)
    return differences(case, run_case(parser, EndFlags(["answer"]), case))


def test_fields_reach_the_parser(tmp_path):
    parser = Scripted()
    case = one_case(
        tmp_path,
        text=None,
        text_parts=[["ab", 2], ["c", 1]],
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        stopped_by="c",
        prefilled_thinking=True,
    )
    run_case(parser, EndFlags(), case)
    assert parser.given["text"] == "ababc"
    assert (parser.given["stopped_by"], parser.given["prefilled_thinking"]) == ("c", True)
    assert parser.given["tools"][0].name == "f"


def test_items_are_compared(tmp_path):
    parser = Scripted(ToolCall("f", {"a": 1}), CallError("unclosed", "", name="g"), CallError("empty", ""))
    expected = [{"name": "f", "arguments": {"a": 1}}, {"error": "unclosed", "name": "g"}, {"error": "empty"}]
    assert check(tmp_path, parser, expected=expected) == []
    assert check(tmp_path, parser, expected=expected[::-1])
    assert check(tmp_path, parser, expected=[*expected[:1], {"error": "unclosed"}, *expected[2:]])


@pytest.mark.parametrize(
    ("items", "name", "expected", "right"),
    [
        ((), "errors_only", [], True),
        ((CallError("empty", ""),), "errors_only", [], True),
        ((ToolCall("f", {}),), "errors_only", [], False),
        ((ToolCall("f", {"x": "aaaa"}),), "one_call", [{"name": "f", "arguments": {"x": "a"}}], True),
        ((ToolCall("f", {"y": "a"}),), "one_call", [{"name": "f", "arguments": {"x": "a"}}], False),
        ((CallError("empty", ""),), "one_call", [{"name": "f", "arguments": {}}], False),
        ((*[ToolCall("f", {})] * 256, CallError("too_many_calls", "")), "cap", [], True),
        ((*[ToolCall("f", {})] * 256,), "cap", [], False),
    ],
)
def test_checks_replace_the_expected_items(tmp_path, items, name, expected, right):
    assert (check(tmp_path, Scripted(*items), check=name, expected=expected) == []) == right


def test_content_answer_and_time_are_compared_where_given(tmp_path):
    parser = Scripted(content="<answer>4</answer>")
    text = "<answer>4</answer>"
    assert check(tmp_path, parser, text=text, content=text, answer="4", max_seconds=60) == []
    assert len(check(tmp_path, parser, text=text, content="", answer=None, max_seconds=-1)) == 3


BAD = ["{", "[]", '"x"', '{"id": "x"}', '{"text": 5}', '{"text": null}', '{"text": "", "tools": [{}]}', "[" * 100_000,
       '{"text": "", "tools": ["f"]}', '{"text": "", "stopped_by": 5}', '{"text": "", "parser": []}',
       '{"text_parts": [["a", "b"]]}', '{"text_parts": [["ab", 9000000000000000000]]}']  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"text": ""}}\n{line}\n', encoding="utf-8")
    first, wrong = read_cases(path)
    assert first.problem is None
    assert (wrong.problem.where or "").endswith("bad.jsonl:2")


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "mark.jsonl"
    path.write_text('{"text": null, "text_parts": [["a", 1]]}', encoding="utf-8-sig")
    assert [case.text for case in read_cases(path)] == ["a"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl"):
        list(read_cases(tmp_path / "none.jsonl"))
