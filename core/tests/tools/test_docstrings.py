"""Docstrings as people write them."""

from __future__ import annotations

import pytest

from toolrl.tools.docstrings import read_docstring

STYLES = {
    "google": "Do it.\n\nArgs:\n    x: The x\n        goes on.\n    y (int): The y.\n\nReturns:\n    It.",
    "first": "\n    Args:\n        x: The x goes on.\n        y: The y.\n\n    Returns:\n        The sum.\n    ",
    "minus": "Do it.\n\nArgs:\n    - x: The x goes on.\n    - y: The y.",
    "star": "Do it.\n\nParameters:\n    * x (dict[str, int]): The x goes on.\n    * y (Callable[[int], str]): The y.",
    "quoted": "Do it.\n\nArgs:\n    `x`: The x goes on.\n    ``y`` (int): The y.",
    "bold": "Do it.\n\n**Arguments:**\n\n- **x** (`int`): The x goes on.\n- **y** -- The y.",
    "markdown": "Do it.\n\n### Parameters\n- `x` (int): The x goes on.\n- `y`: The y.",
    "dashes": "Do it.\n\nArgs:\n    x - The x goes on.\n    y — The y.",
    "continued": "Do it.\n\nArgs:\n    x: The x\n    goes on.\n    y: The y.",
    "dedented": "Do it.\n\nArgs:\n    x: The x\ngoes on.\n    y: The y.",
    "flat": "Do it.\n\nArgs:\nx: The x goes on.\ny: The y.\n\nReturns:\n    It.",
    "below": "Do it.\n\nArgs:\n    x:\n        The x goes on.\n\n    y (int):\n        The y.",
    "unknown": "Do it.\n\nArgs:\n    ctx: Not.\n    x: The x goes on.\n    **kw: Not\n        shown.\n    y: The y.",
    "numpy": "Do it.\n\nParameters\n----------\nx : int\n    The x\n    goes on.\n`y` : int, optional\n    The y.",
    "numpy first": "Parameters\n----------\nx : int\n    The x goes on.\ny\n    The y.\n\nReturns\n-------\nint",
    "sphinx": "Do it.\n\n:param x: The x\n    goes on.\n:type x: int\n:param int y: The y.\n:returns: It.",
    "sphinx first": ":param x: The x goes on.\n:param y (int): The y.",
    "epydoc": "Do it.\n\n@param x: The x goes on.\n@param y: The y.",
}


@pytest.mark.parametrize("style", STYLES)
def test_each_style_describes_all_parameters(style: str) -> None:
    text, described = read_docstring(STYLES[style], ["x", "y"])
    assert described == {"x": "The x goes on.", "y": "The y."}
    assert text == ("Do it." if STYLES[style].startswith("Do") else "")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Do it.\n\nArgs:\n    x, y: Both.", {"x": "Both.", "y": "Both."}),
        ("Do it.\n\nParameters\n----------\nx, y : int\n    Both.", {"x": "Both.", "y": "Both."}),
        ("Do it.\n\nArgs:\n    x: One of\n        - a: first\n        - b: last", {"x": "One of - a: first - b: last"}),
        ("Do it.\n\nArgs:\n    x: Such as `y: 3`, or 10:30.", {"x": "Such as `y: 3`, or 10:30."}),
    ],
)
def test_what_belongs_to_a_parameter(text: str, names: dict[str, str]) -> None:
    assert read_docstring(text, ["x", "y"]) == ("Do it.", names)


@pytest.mark.parametrize(
    "text",
    [
        "Do it.\n\nArgs:\n    x: The x.\n\nMore: of it.",
        "Do it.\n\n:param x: The x.\n\nMore: of it.",
        "Do it.\n\nMore: of it.\n\nArgs:\n    x: The x.",
    ],
)
def test_what_follows_the_parameters_stays_in_the_description(text: str) -> None:
    assert read_docstring(text, ["x", "y"]) == ("Do it.\n\nMore: of it.", {"x": "The x."})


def test_a_text_without_sections_is_the_description() -> None:
    assert read_docstring("Adds.\n\nx: this is prose. Args: this as well.", ["x"]) == (
        "Adds.\n\nx: this is prose. Args: this as well.",
        {},
    )
    assert read_docstring("\n    Adds\n    two numbers.\n    ", ["x"]) == ("Adds\ntwo numbers.", {})
