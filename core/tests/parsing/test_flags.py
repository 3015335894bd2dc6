"""End flags."""

from __future__ import annotations

import pickle

import pytest

from toolrl.errors import ConfigError
from toolrl.parsing import MAX_ITEMS, EndFlags
from toolrl.types import CallError, ParsedTurn, ToolCall


def read(text, *names, items=(), stopped_by=None, stop=False, status="final"):
    """A turn whose items are given as (start, end) spans of calls; the rest is content."""
    spans, at = [], 0
    for start, end in items:
        spans.append((at, start))
        at = end
    spans.append((at, len(text)))
    spans = tuple(span for span in spans if span[0] < span[1])
    parsed = ParsedTurn(
        items=tuple(ToolCall("f", {}, span=span, raw=text[slice(*span)]) for span in items),
        content="".join(text[a:b] for a, b in spans),
        status="calls" if items else status,
        content_spans=spans,
    )
    return EndFlags(names, stop=stop).read(parsed, text, stopped_by=stopped_by)


def kinds(turn):
    return [item.kind if isinstance(item, CallError) else item.name for item in turn.items]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>42</answer>", "42"),
        ("<answer>\n 42 \n</answer> bye", "42"),
        ("<answer></answer>", ""),
        ("<answer>a\nb < c</answer>", "a\nb < c"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("I write <answer> tags: <answer>2</answer>", "2"),
        ("42", None),
        ("<answer>42", None),
        ("<answer>42</ans", None),
        ("42</answer>", None),
    ],
)
def test_answer(text, answer):
    assert EndFlags(["answer"]).find(text) == answer
    assert read(text, "answer").answer == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{42}.", "42"),
        ("\\boxed {42}", "42"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{a} or \\boxed{b}", "b"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{{a}{b}}", "{a}{b}"),
        ("} \\boxed{5} {", "5"),
        ("\\boxed{}", ""),
        ("\\boxed{4", None),
        ("\\boxed 4", None),
        ("boxed{4}", None),
        ("\\boxed{4} \\boxed{5", "4"),
    ],
)
def test_boxed(text, answer):
    assert EndFlags(["boxed"]).find(text) == answer


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        (r"#### (-?\d+)", "#### 41\n#### 42", "42"),
        (r"(?s)<final>(.*?)</final>", "<final>a\nb</final>", "a\nb"),
        (r"(?i)answer: (.+)", "ANSWER: é", "é"),
        (r"x(y)?", "xy x", "y"),
        (r"()", "abc", ""),
        (r"#### (\d+)", "none", None),
    ],
)
def test_patterns(pattern, text, answer):
    assert EndFlags([pattern]).find(text) == answer


def test_the_first_flag_that_matches_wins():
    text = "<answer>1</answer> \\boxed{2}"
    assert EndFlags(["boxed", "answer"]).find(text) == "2"
    assert EndFlags(["answer", "boxed"]).find(text) == "1"
    assert EndFlags([r"#(\d)", "boxed"]).find(text) == "2"


def test_a_hostile_pattern_cannot_hang():
    assert EndFlags([r"(a+)+$"]).find("a" * 100_000 + "b") is None


@pytest.mark.parametrize("pattern", ["(?=a)(b)", r"(a)\1", "(", "anwser", "a.*b"])
def test_patterns_that_cannot_be_used(pattern):
    with pytest.raises(ConfigError) as raised:
        EndFlags(["answer", pattern, "["], where="environments.default.end_flags")
    assert len(raised.value.problems) == 2
    assert repr(pattern) in raised.value.problems[0]
    assert raised.value.where == "environments.default.end_flags"


def test_open_and_stray_tags_are_errors():
    assert kinds(read("<answer>42", "answer")) == ["unclosed"]
    assert kinds(read("42</answer>", "answer")) == ["stray_close"]
    assert kinds(read("<answer>" * 50, "answer")) == ["unclosed"]
    assert kinds(read("\\boxed{4", "boxed")) == ["unclosed"]
    turn = read("a <answer>42", "answer")
    assert (turn.status, turn.items[0].raw, turn.content) == ("calls", "<answer>42", "a <answer>42")
    assert "<answer>ANSWER</answer>" in turn.items[0].message


def test_calls_are_not_searched():
    text = "[<answer>9</answer>]"
    assert read(text, "answer", "boxed", items=[(0, len(text))]).answer is None


def test_errors_stand_in_order_among_calls():
    text = "</answer>[call]<answer>x[call]y"
    turn = read(text, "answer", items=[(9, 15), (24, 30)])
    assert kinds(turn) == ["stray_close", "f", "unclosed", "f"]
    assert turn.items[2].raw == "<answer>x"


def test_tags_do_not_join_over_a_call():
    assert read("<ans[call]wer>5</answer>", "answer", items=[(4, 10)]).answer is None


def test_the_limit_of_items_holds():
    turn = read("</answer>" * 400, "answer")
    assert len(turn.items) == MAX_ITEMS + 1
    assert turn.items[-1].kind == "too_many_calls"


def test_stopping_at_the_closing_tag():
    assert EndFlags(["answer"]).stops() == ()
    assert EndFlags(["answer", "boxed"], stop=True).stops() == ("</answer>",)
    assert EndFlags(["boxed"], stop=True).stops() == ()
    cut_off = read("<answer>42", "answer", stop=True, stopped_by="</answer>")
    assert (cut_off.answer, cut_off.items) == ("42", ())
    # The stop string stood in a call's argument: generation goes on.
    text = "[</answer>]"
    assert read(text, "answer", stop=True, items=[(0, 11)], stopped_by="</answer>").status == "continue"


def test_an_answer_of_the_parser_itself_stays():
    parsed = ParsedTurn(content="<answer>2</answer>", answer="1", content_spans=((0, 18),))
    assert EndFlags(["answer"]).read(parsed, parsed.content).answer == "1"


def test_a_parser_without_spans():
    text = "think <answer>1</answer>|<answer>2</answer>"
    parsed = ParsedTurn(content="<answer>2</answer>")
    assert EndFlags(["answer"]).read(parsed, text).answer == "2"
    assert EndFlags(["answer"]).read(ParsedTurn(content="not in the text"), text).answer is None


def test_flags_survive_pickling():
    flags = pickle.loads(pickle.dumps(EndFlags(["answer", r"#(\d)"], stop=True)))
    assert (flags.names, flags.stops(), flags.find("#5")) == (("answer", r"#(\d)"), ("</answer>",), "5")
