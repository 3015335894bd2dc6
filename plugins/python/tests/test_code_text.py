"""Code as models write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl_plugin_python.code import runnable


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print(1)", "print(1)"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("\n\n```py\nx = 1\nx\n```\n\n", "x = 1\nx"),
        ("```Python \nprint(1)\n``` ", "print(1)"),
        ("```python\nprint(1)", "print(1)"),
        ("```python", ""),
        ("```", ""),
        ("    x = 1\n    if x:\n        x", "x = 1\nif x:\n    x"),
        ("\tx = 1\n\tx", "x = 1\nx"),
        ("```python\n  x = 1\n  x\n```", "x = 1\nx"),
        ("x = '''\n```python\n'''", "x = '''\n```python\n'''"),
        ("```json\n{}\n```", "```json\n{}\n```"),
        ("Here it is:\n```python\n1\n```", "Here it is:\n```python\n1\n```"),
        ("x = 1\n    # odd\n  ", "x = 1\n    # odd"),
        ("", ""),
        ("\r\n", ""),
    ],
)
def test_fences_and_indentation_go(text: str, code: str) -> None:
    assert runnable(text) == code


@given(
    st.lists(
        st.sampled_from(["x = 1", "if x:\n    y = 2", "s = '''\n  a\n'''", "# note", "", "f(x)", "`"]), max_size=6
    ),
    st.sampled_from(["", "python", "py"]),
)
def test_a_fence_changes_nothing_else(pieces: list[str], language: str) -> None:
    code = "\n".join(pieces)
    assert runnable(f"```{language}\n{code}\n```").strip("\n") == runnable(code)
