"""Reading verdicts, and the form that the judge is asked for."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolrl_plugin_judge.options import JudgeOptions
from toolrl_plugin_judge.prompt import UnreadableVerdictError, format_text, read_verdict


def options(**fields: Any) -> JudgeOptions:
    return JudgeOptions(**{"base_url": "http://host/v1", "model": "judge", **fields})


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"score": 7}', 7.0),
        (' {"reasons": "Score: 10", "score": 0.5, "more": null}\n', 0.5),
        ('```json\n{"score": 10}\n```', 10.0),
        ('<think>{"score": 1} or {"score": 2}</think>\n\n{"score": 3}', 3.0),
    ],
)
def test_verdicts(reply: str, score: float) -> None:
    assert read_verdict(reply, options()) == score


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "</think>",
        "7",
        "Score: 7",
        'Here: {"score": 7}',
        '{"score": 7} {"score": 9}',
        '{"score": 7, "score": 9}',
        '{"score": "7"}',
        '{"score": true}',
        '{"score": NaN}',
        '{"score": 1e999}',
        '{"score": 10.5}',
        '{"score": ' + "9" * 400 + "}",
        '{"Score": 7}',
        "[" * 100_000,
    ],
)
def test_what_is_no_verdict(reply: str) -> None:
    with pytest.raises(UnreadableVerdictError):
        read_verdict(reply, options())


@given(st.text() | st.text('{}"score:0123456789.\n `'))
def test_any_reply_is_a_verdict_on_the_scale_or_unreadable(reply: str) -> None:
    with suppress(UnreadableVerdictError):
        assert 0 <= read_verdict(reply, options()) <= 10


@given(st.floats(0, 10).map(lambda it: round(it, 6)), st.text())
def test_what_was_asked_for_is_read(score: float, reasons: str) -> None:
    assert read_verdict(json.dumps({"reasons": reasons, "score": score}), options()) == score


def test_the_form_says_the_scale() -> None:
    assert "from 0 (worst) to 10 (best)" in format_text(options())
    assert "from 1 (worst) to 5 (best)" in format_text(options(scale=[1, 5]))


@pytest.mark.parametrize(("fields", "said"), [({"scale": [5, 5]}, "below"), ({"base_url": "host:8000"}, "base_url")])
def test_options_that_cant_be_meant(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        options(**fields)


def test_a_key_isnt_shown() -> None:
    assert "hunter2" not in repr(options(api_key="hunter2", headers={"api-key": "hunter2"}))
