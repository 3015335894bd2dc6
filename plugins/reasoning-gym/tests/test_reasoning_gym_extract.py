"""The answer in a text."""

from __future__ import annotations

import pytest

from toolrl_plugin_reasoning_gym.reward import Form, answer_in


@pytest.mark.parametrize(
    ("text", "form", "answer"),
    [
        ("<answer>3</answer> no: <answer> 4\n</answer>", "tag", "4"),
        ("<answer>4", "tag", None),
        ("<answer></answer>", "tag", None),
        (r"\boxed{3}, \boxed{\frac{1}{2}}.", "boxed", r"\frac{1}{2}"),
        (r"\boxed{", "boxed", None),
        ("  4\n", "text", "4"),
        (" ", "text", None),
    ],
)
def test_the_answer(text: str, form: Form, answer: str | None) -> None:
    assert answer_in(text, form) == answer
