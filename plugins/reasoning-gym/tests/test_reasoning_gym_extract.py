"""The answer in a text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl_plugin_reasoning_gym.reward import Form, answer_in

PIECES = ["<answer>", "</answer>", "\\boxed{", "{", "}", " ", "\n", "x", "4", "<answer", "</", "\\boxed"]
TEXTS = st.lists(st.sampled_from(PIECES)).map("".join)


def library_answer(text: str) -> str | None:
    """The library's `extract_answer`."""
    found = list(re.finditer(r"<answer>\s?(.*?)\s?</answer>", text, flags=re.DOTALL))
    return found[-1].group(1).strip() if found else None


@given(TEXTS)
def test_tags_are_read_as_the_library_reads_them(text: str) -> None:
    assert answer_in(text, "tag") == (library_answer(text) or None)


@pytest.mark.parametrize(
    ("text", "form", "answer"),
    [
        ("so <answer>4</answer>", "tag", "4"),
        ("<answer>3</answer> no: <answer> 4\n</answer>", "tag", "4"),
        ("<answer>4", "tag", None),
        ("<answer></answer>", "tag", None),
        ("4", "tag", None),
        (r"so \boxed{4}", "boxed", "4"),
        (r"\boxed{3}, \boxed{\frac{1}{2}}.", "boxed", r"\frac{1}{2}"),
        (r"\boxed{a \boxed{b} c}", "boxed", r"a \boxed{b} c"),
        (r"\boxed{ never closed, \boxed{4}", "boxed", "4"),
        (r"}} \boxed{4} {", "boxed", "4"),
        (r"\boxed{", "boxed", None),
        ("boxed{4}", "boxed", None),
        ("  4\n", "text", "4"),
        (" ", "text", None),
    ],
)
def test_the_answer(text: str, form: Form, answer: str | None) -> None:
    assert answer_in(text, form) == answer


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("form", ["tag", "boxed"])
def test_long_texts_take_no_longer_than_their_length(piece: str, form: Form) -> None:
    answer_in(piece * 300_000, form)
