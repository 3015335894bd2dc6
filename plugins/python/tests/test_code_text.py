"""Code as models write it."""

from __future__ import annotations

import pytest

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
