"""One line of another library's error, for a message."""

from __future__ import annotations

import pytest

from toolrl.errors import first_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("no such file\nsearched here\n", "no such file"),
        ("one of: \n(1) a file, \n(2) a class", "one of: (1) a file, (2) a class"),
        ("nothing follows:", "nothing follows:"),
        ("", "ValueError"),
    ],
)
def test_a_line_that_announces_more_goes_on(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line
