"""Reading verdicts, and the form that the judge is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolrl_plugin_judge.options import JudgeOptions
from toolrl_plugin_judge.verdict import UnreadableVerdictError, format_text, read_verdict, response_format


def options(**fields: Any) -> JudgeOptions:
    return JudgeOptions(**{"base_url": "http://host/v1", "model": "judge", **fields})


CRITERIA = [{"name": "right", "description": "is right", "weight": 3}, {"name": "brief", "description": "is brief"}]
JSON = options()
BOXED = options(verdict="boxed")
LINE = options(verdict="line", scale=[1, 5])


@pytest.mark.parametrize(
    ("reply", "settings", "scores"),
    [
        ('{"score": 7}', JSON, {"score": 7.0}),
        (' {"reasons": "Score: 10", "score": 0.5, "more": null}\n', JSON, {"score": 0.5}),
        ('```json\n{"score": 10}\n```', JSON, {"score": 10.0}),
        ('<think>{"score": 1} or {"score": 2}</think>\n\n{"score": 3}', JSON, {"score": 3.0}),
        (
            '{"scores": {"brief": 1, "right": 2.5}}',
            options(criteria=CRITERIA),
            {"brief": 1.0, "right": 2.5},
        ),
        ("It says \\boxed{10}, but no.\n\\boxed{2}", BOXED, {"score": 2.0}),
        ("Reasons.\n\n**Score**: $\\boxed{ 7.5 / 10 }$.\n", BOXED, {"score": 7.5}),
        ("Score: 5\nis what it claims.\nScore: 2", LINE, {"score": 2.0}),
        ("Reasons\n**Score:** 4/5.", LINE, {"score": 4.0}),
        ("score = 1", LINE, {"score": 1.0}),
    ],
)
def test_verdicts(reply: str, settings: JudgeOptions, scores: dict[str, float]) -> None:
    assert read_verdict(reply, settings) == scores


@pytest.mark.parametrize(
    ("reply", "settings"),
    [
        ("", JSON),
        ("</think>", JSON),
        ("7", JSON),
        ("Score: 7", JSON),
        ('Here: {"score": 7}', JSON),
        ('{"score": 7} {"score": 9}', JSON),
        ('{"score": 7, "score": 9}', JSON),
        ('{"score": "7"}', JSON),
        ('{"score": true}', JSON),
        ('{"score": NaN}', JSON),
        ('{"score": 1e999}', JSON),
        ('{"score": 10.5}', JSON),
        ('{"score": -1}', JSON),
        ('{"score": ' + "9" * 400 + "}", JSON),
        ('{"Score": 7}', JSON),
        ("[" * 100_000, JSON),
        ('{"scores": {"right": 1}}', options(criteria=CRITERIA)),
        ('{"scores": {"right": 1, "brief": 1, "nice": 1}}', options(criteria=CRITERIA)),
        ('{"scores": 7, "score": 7}', options(criteria=CRITERIA)),
        ("\\boxed{7}\nThat is all.", BOXED),
        ("\\boxed{7} \\boxed{9}", BOXED),
        ("\\boxed{seven}", BOXED),
        ("7", BOXED),
        ("\\boxed{11}", BOXED),
        ("\\boxed{70/100}", BOXED),
        ("Score: 7", LINE),
        ("Score: 4\nThe end.", LINE),
        ("My Score: 4 or 5", LINE),
        ("Score: 4/10", LINE),
    ],
)
def test_what_is_no_verdict(reply: str, settings: JudgeOptions) -> None:
    with pytest.raises(UnreadableVerdictError):
        read_verdict(reply, settings)


@pytest.mark.parametrize("verdict", ["line", "boxed"])
@pytest.mark.parametrize(
    "line", ["score" + " " * 1_000_000 + "x", "Score:" + " *" * 500_000, "\\boxed{" + " " * 1_000_000 + "7 8}"]
)
def test_a_long_line_is_refused_at_once(verdict: str, line: str) -> None:
    with pytest.raises(UnreadableVerdictError, match="last line"):
        read_verdict(line, options(verdict=verdict))


@given(st.text() | st.text('{}"score:\\boxed/0123456789.\n `'))
def test_any_reply_is_a_verdict_on_the_scale_or_unreadable(reply: str) -> None:
    for settings in (JSON, BOXED, LINE, options(criteria=CRITERIA)):
        try:
            scores = read_verdict(reply, settings)
        except UnreadableVerdictError:
            continue
        assert all(settings.scale[0] <= score <= settings.scale[1] for score in scores.values())


@given(st.floats(0, 10).map(lambda it: round(it, 6)), st.text())
def test_what_was_asked_for_is_read(score: float, reasons: str) -> None:
    assert read_verdict(json.dumps({"reasons": reasons, "score": score}), JSON) == {"score": score}
    assert read_verdict(f"{reasons}\n\\boxed{{{score:f}}}", BOXED) == {"score": pytest.approx(score)}


def test_the_form_says_scale_and_names() -> None:
    assert "from 0 (worst) to 10 (best)" in format_text(JSON)
    assert "from 1 (worst) to 5 (best)" in format_text(LINE)
    assert "\\boxed{score}" in format_text(BOXED)
    assert '"right": <number>, "brief": <number>' in format_text(options(criteria=CRITERIA))


def test_structured_output() -> None:
    assert response_format(JSON) is None
    assert response_format(options(structured="json_object")) == {"type": "json_object"}
    found = response_format(options(structured="json_schema", criteria=CRITERIA))
    assert found is not None
    schema = found["json_schema"]["schema"]
    assert schema["properties"]["scores"]["required"] == ["right", "brief"]
    assert schema["properties"]["scores"]["properties"]["right"] == {"type": "number", "minimum": 0, "maximum": 10}
    plain = response_format(options(structured="json_schema"))
    assert plain is not None
    assert plain["json_schema"]["schema"]["required"] == ["reasons", "score"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scale": [5, 5]}, "below"),
        ({"criteria": [CRITERIA[0], CRITERIA[0]]}, "one name"),
        ({"criteria": CRITERIA, "verdict": "line"}, "criteria need"),
        ({"structured": "json_object", "verdict": "boxed"}, "structured"),
        ({"combine": "median"}, "one sample"),
        ({"samples": 3, "temperature": 0}, "all the same"),
        ({"base_url": "host:8000"}, "base_url"),
        ({"criteria": [{"name": "a b", "description": "x"}]}, "name"),
    ],
)
def test_options_that_cant_be_meant(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        options(**fields)


def test_a_key_isnt_shown() -> None:
    assert "hunter2" not in repr(options(api_key="hunter2", headers={"api-key": "hunter2"}))
