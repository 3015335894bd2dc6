"""`toolrl parse`, with a toy parser: each word in capitals is a call."""

from __future__ import annotations

import io
import json
from types import ModuleType

import pytest
from pydantic import BaseModel, ConfigDict

import toolrl.plugins.registry
from toolrl import Component, hookimpl
from toolrl.cli.main import main
from toolrl.plugins.registry import Registry
from toolrl.types import CallError, ParsedTurn, ToolCall


class ToyOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    shout: bool = False


class ToyParser:
    def __init__(self, options, context):
        self.options = options

    def stops(self, turn_text):
        return ()

    def parse(self, text, *, tools, finish="stop", stopped_by=None, prefilled_thinking=False):
        items = []
        for word in text.split():
            if word.isupper():
                known = {"known": word in {tool.name for tool in tools}} if tools else {}
                items.append(ToolCall(word + "!" * self.options.shout, known))
        if stopped_by:
            items.append(CallError("unclosed", "Two\nlines.", name=stopped_by))
        reasoning = "" if prefilled_thinking else None
        return ParsedTurn(tuple(items), text, reasoning, content_spans=((0, len(text)),) if text else ())

    def render_results(self, records):
        return []


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    module = ModuleType("toy_plugin")

    @hookimpl
    def toolrl_parsers():
        for name in ("toy", "hermes"):
            yield Component(name, f"{__name__}:ToyParser", options=f"{__name__}:ToyOptions")

    module.toolrl_parsers = toolrl_parsers
    registry = Registry.from_modules({"demo": module})
    monkeypatch.setattr(toolrl.plugins.registry, "load_registry", lambda: registry)


@pytest.fixture
def cases(tmp_path):
    rows = [
        {"id": "right", "parser": "toy", "text": "do IT", "expected": [{"name": "IT", "arguments": {}}]},
        {"id": "any", "text": "<answer>4</answer>", "expected": [], "answer": "4"},
        {"id": "other", "parser": "third", "text": "X"},
        {"id": "flag", "parser": "answer", "text": "<answer>5", "expected": [{"error": "unclosed"}], "answer": None},
    ]

    def write(*more):
        path = tmp_path / "cases.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, *more)), encoding="utf-8")
        return str(path)

    return write


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_text_is_listed(capsys):
    assert main(["parse", "--parser", "toy", "call IT <answer>4</answer>", "--stopped-by", "x"]) == 0
    shown = capsys.readouterr().out
    assert "call   [0:0] IT {}" in shown
    assert "unclosed (x): Two\n       lines." in shown
    assert "answer    '4'" in shown


def test_a_text_as_json(capsys, tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "IT"}]', encoding="utf-8")
    arguments = ["--option", "shout=true", "--tools", str(tools), "--json"]
    assert main(["parse", "--parser", "demo/toy", "call IT", *arguments]) == 0
    (facts,) = lines(capsys)
    assert facts["items"] == [{"name": "IT!", "arguments": {"known": True}}]
    assert set(facts) == {"items", "content", "answer", "seconds"}


def test_standard_input(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("call IT"))
    assert main(["parse", "--parser", "toy", "-", "--json"]) == 0
    assert lines(capsys)[0]["content"] == "call IT"


def test_cases_of_this_parser_and_of_none_are_run(capsys, cases):
    assert main(["parse", "--parser", "toy", "--cases", cases(), "--json"]) == 0
    assert [line["id"] for line in lines(capsys)] == ["right", "any"]


def test_each_case_gives_one_line(capsys, tmp_path):
    path = tmp_path / "cases.jsonl"
    rows = [
        {"id": 7, "text": "do IT"},
        {"text": "", "tools": None, "stopped_by": None, "prefilled_thinking": False},
        {
            "id": "parts",
            "text_parts": [["GO ", 2], ["<answer>é", 1]],
            "tools": [{"name": "GO"}],
            "stopped_by": "</answer>",
        },
    ]
    path.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert main(["parse", "--parser", "demo/toy", "--cases", str(path), "--json"]) == 0
    shown = lines(capsys)
    assert all(set(line) == {"id", "items", "content", "answer", "seconds"} for line in shown)
    assert all(line.pop("seconds") >= 0 for line in shown)
    called = {"name": "GO", "arguments": {"known": True}}
    assert shown == [
        {"id": 7, "items": [{"name": "IT", "arguments": {}}], "content": "do IT", "answer": None},
        {"id": "3", "items": [], "content": "", "answer": None},
        {
            "id": "parts",
            "items": [called, called, {"error": "unclosed", "name": "</answer>"}],
            "content": "GO GO <answer>é",
            "answer": "é",
        },
    ]


def test_hermes_runs_the_cases_of_the_answer_flag(capsys, cases):
    assert main(["parse", "--parser", "hermes", "--cases", cases(), "--json"]) == 0
    captured = capsys.readouterr()
    shown = {line["id"]: line for line in map(json.loads, captured.out.splitlines())}
    assert set(shown) == {"any", "flag"}
    assert shown["any"]["answer"] == "4"
    assert shown["flag"]["items"] == [{"error": "unclosed"}]
    assert "2 cases run, 2 of other parsers skipped" in captured.err


def test_the_answer_flag_runs_its_own_cases(capsys, cases):
    assert main(["parse", "--parser", "answer", "--cases", cases(), "--json"]) == 0
    assert [line["id"] for line in lines(capsys)] == ["any", "flag"]


def test_a_line_that_is_no_case_loses_no_other(capsys, tmp_path):
    path = tmp_path / "cases.jsonl"
    rows = ['{"id": "a", "text": "IT"}', "{oops", '{"id": "b"}', '{"parser": "third"}', "[]", '{"id": "c", "text": ""}']
    path.write_text("\n".join(rows), encoding="utf-8")
    assert main(["parse", "--parser", "toy", "--cases", str(path), "--json"]) == 1
    captured = capsys.readouterr()
    shown = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["id"] for line in shown] == ["a", "2", "b", "5", "c"]
    assert ["error" in line for line in shown] == [False, True, True, True, False]
    assert shown[1]["error"]["where"] == f"{path}:2"
    assert "2 cases run, 1 of other parsers skipped, lines that are no case: 3" in captured.err
    assert f"{path}:3: a case lacks 'text'" in captured.err
    assert main(["parse", "--parser", "toy", "--cases", str(path), "--check"]) == 1
    assert f"{path}:5" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--cases", "missing.jsonl"], ["--cases", "missing.jsonl", "--option", "x"]])
def test_with_json_the_lines_of_cases_stand_alone(capsys, arguments):
    assert main(["parse", "--parser", "toy", "--json", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")


def test_half_a_surrogate_pair_can_be_shown(capsys, tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({"id": "\ud800", "text": "A\ud800"}), encoding="utf-8")
    assert main(["parse", "--parser", "toy", "--cases", str(path)]) == 0
    assert "call   [0:0] A\\ud800 {}" in capsys.readouterr().out
    assert main(["parse", "--parser", "toy", "--cases", str(path), "--json"]) == 0
    assert lines(capsys)[0]["content"] == "A\ud800"


def test_check_fails_on_a_difference(capsys, cases):
    assert main(["parse", "--parser", "toy", "--cases", cases(), "--check"]) == 0
    wrong = {"id": "wrong", "text": "no", "expected": [{"name": "X", "arguments": {}}]}
    assert main(["parse", "--parser", "toy", "--cases", cases(wrong), "--check"]) == 1
    shown = capsys.readouterr().err
    assert "wrong\n  items: expected [{'name': 'X'" in shown
    assert "3 cases run, 2 of other parsers skipped, 1 wrong" in shown


def test_a_debatable_difference_is_told_and_no_failure(capsys, cases):
    row = {"id": "moot", "text": "no", "expected": [{"error": "empty"}], "debatable": True, "alternatives": ["[]"]}
    assert main(["parse", "--parser", "toy", "--cases", cases(row), "--check"]) == 0
    assert "moot (debatable; also possible: [])" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--parser", "nope", "x"], "nope"),
        (["--parser", "toy", "x", "--option", "shout"], "NAME=VALUE"),
        (["--parser", "toy", "x", "--option", "shout=[1"], "YAML"),
        (["--parser", "toy", "x", "--option", "whisper=1"], "whisper"),
        (["--parser", "toy", "x", "--end-flag", "("], "--end-flag"),
        (["--parser", "toy", "x", "--tools", "missing.json"], "missing.json"),
        (["--parser", "toy", "--cases", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_mistakes_are_told(capsys, arguments, words):
    assert main(["parse", *arguments]) == 1
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


def test_no_case_for_the_parser_is_an_error(capsys, tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_text('{"text": "", "parser": "third"}', encoding="utf-8")
    assert main(["parse", "--parser", "toy", "--cases", str(path)]) == 1
    assert "no case is for the parser 'toy'" in capsys.readouterr().err
