"""Reading verdicts, and the form that the judge is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolrl_plugin_judge.options import JudgeOptions
from toolrl_plugin_judge.verdict import UnreadableVerdictError, format_text, read_verdict


def options(**fields: Any) -> JudgeOptions:
    return JudgeOptions(**{"base_url": "http://host/v1", "model": "judge", **fields})


CRITERIA = [{"name": "right", "description": "is right", "weight": 3}, {"name": "brief", "description": "is brief"}]
JSON = options()


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
    ],
)
def test_what_is_no_verdict(reply: str, settings: JudgeOptions) -> None:
    with pytest.raises(UnreadableVerdictError):
        read_verdict(reply, settings)


@given(st.text() | st.text('{}"score:0123456789.\n `'))
def test_any_reply_is_a_verdict_on_the_scale_or_unreadable(reply: str) -> None:
    for settings in (JSON, options(criteria=CRITERIA)):
        try:
            scores = read_verdict(reply, settings)
        except UnreadableVerdictError:
            continue
        assert all(settings.scale[0] <= score <= settings.scale[1] for score in scores.values())


@given(st.floats(0, 10).map(lambda it: round(it, 6)), st.text())
def test_what_was_asked_for_is_read(score: float, reasons: str) -> None:
    assert read_verdict(json.dumps({"reasons": reasons, "score": score}), JSON) == {"score": score}


def test_the_form_says_scale_and_names() -> None:
    assert "from 0 (worst) to 10 (best)" in format_text(JSON)
    assert "from 1 (worst) to 5 (best)" in format_text(options(scale=[1, 5]))
    assert '"right": <number>, "brief": <number>' in format_text(options(criteria=CRITERIA))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scale": [5, 5]}, "below"),
        ({"criteria": [CRITERIA[0], CRITERIA[0]]}, "one name"),
        ({"base_url": "host:8000"}, "base_url"),
        ({"criteria": [{"name": "a b", "description": "x"}]}, "name"),
    ],
)
def test_options_that_cant_be_meant(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        options(**fields)


def test_a_key_isnt_shown() -> None:
    assert "hunter2" not in repr(options(api_key="hunter2", headers={"api-key": "hunter2"}))
