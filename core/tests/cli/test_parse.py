"""`toolrl parse`, with a toy parser: each word in capitals is a call."""

from __future__ import annotations

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
    assert main(["parse", "--parser", "toy", "call IT <answer>4</answer>"]) == 0
    shown = capsys.readouterr().out
    assert "call   [0:0] IT {}" in shown
    assert "answer    '4'" in shown


def test_a_text_as_json(capsys):
    arguments = ["--option", "shout=true", "--json"]
    assert main(["parse", "--parser", "demo/toy", "call IT", *arguments]) == 0
    (facts,) = lines(capsys)
    assert facts["items"] == [{"name": "IT!", "arguments": {}}]
    assert set(facts) == {"items", "content", "answer", "seconds"}


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--parser", "nope", "x"], "nope"),
        (["--parser", "toy", "x", "--option", "shout"], "NAME=VALUE"),
        (["--parser", "toy", "x", "--option", "shout=[1"], "YAML"),
        (["--parser", "toy", "x", "--option", "whisper=1"], "whisper"),
        (["--parser", "toy", "x", "--end-flag", "("], "--end-flag"),
        (["--parser", "toy", "--cases", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_mistakes_are_told(capsys, arguments, words):
    assert main(["parse", *arguments]) == 1
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown
