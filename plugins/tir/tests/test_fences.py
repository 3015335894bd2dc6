"""Code fences: which are calls, where they end, what code they hold."""

from __future__ import annotations

import pytest

CALC = "<calculator>1</calculator>"


def test_a_call(parse):
    text = "Let me see.\n```python\nprint(1)\n```\nDone."
    turn = parse(text)
    (item,) = turn.items
    assert (item.name, item.arguments) == ("python", {"code": "print(1)"})
    assert (item.span, item.raw) == ((12, 34), "```python\nprint(1)\n```")
    assert (turn.content, turn.status) == ("Let me see.\n\nDone.", "calls")


@pytest.mark.parametrize(
    "opening",
    ["```python", "```py", "```python3", "```PYTHON", "``` python", "```python  ", "```python\r", "~~~python",
     "`````python", "```python {.numberLines}", "  ```python", "        ```python", "\t```python", "So: ```python",
     "So: ~~~py", "- ```python", "1. ```python", "> - ```python"],
)  # fmt: skip
def test_openings_of_calls(opening, read):
    run = "".join(char for char in opening if char in "`~")
    assert read(f"{opening}\nx = 1\n{run}\n{CALC}") == ["x = 1", "1"]


@pytest.mark.parametrize(
    "opening",
    ["```", "```json", "```pythonic", "```python3.11", "```output", "~~~", "```text title", "So: ```json", "So: ```"],
)  # fmt: skip
def test_other_fences_are_content_in_which_nothing_counts(opening, parse, read):
    run = "".join(char for char in opening if char in "`~")
    text = f"{opening}\n{CALC}</python>\n<think>\n{run}\n{CALC}"
    turn = parse(text)
    assert read(text) == ["1"]
    assert (turn.content, turn.reasoning) == (text.removesuffix(CALC), None)


@pytest.mark.parametrize(
    "line", ["use ``` as a fence", "a ```x = 1``` b", "```x = 1```", "so ```print(1)``` runs", "```"]
)
def test_runs_that_open_no_fence(line, read):
    before = "Not a fence: " if line == "```" else ""
    closing = "\n```\n" if line == "```" else "\n"
    assert read(f"{before}{line}{closing}{CALC}") == ["1"]


READ = {
    "prose ends no inline code": [
        (f"fences are ```\nand a call is {CALC}\n```\n{CALC}", ["1"]),
        (f"the ``` marks\n{CALC}", ["1"]),
    ],
    "several calls keep their order": [(f"```py\na\n```\n{CALC}\n~~~py\nb\n~~~", ["a", "1", "b"])],
    "lines that end no fence": [
        (f"```python\na\n{line}\nb\n```", [f"a\n{line}\nb"])
        for line in ("s = '```'", "x ```", "    ```", "```json", "``", "~~~", "~~~python", "    ```python",
                     "```outputs", "```output x")
    ],
    "closing lines": [
        (f"```python\na\n{closing}\nb", ["a"]) for closing in ("```", "   ```", "``` ", "```\t\r", "`````")
    ],
    "a longer run ends a fence, a shorter doesn't": [("````python\na\n```\nb\n`````\n", ["a\n```\nb"])],
    "a closing line is indented by three columns more at most": [
        ("  ```python\n  a\n     ```\nb", ["a"]),
        ("  ```python\n  a\n      ```\nb", ["!unclosed"]),
        ("10. ```python\n    a\n    ```\nb", ["a"]),
        ("a: ```python\nb\n      ```\n```", ["b\n      ```"]),
    ],
    "a call in a call means that the first wasn't closed": [
        ("```python\na\n```python\nb\n```", ["!unclosed", "b"]),
        ("```python\na\n````py\nb\n````", ["!unclosed", "b"]),
        ("````python\na\n```python\nb\n```\n````", ["a\n```python\nb\n```"]),
    ],
    "a call ends another fence that wasn't closed": [
        ("```output\n2\n```python\na\n```", ["a"]),
        ("````markdown\n```python\na\n```\n````", []),
        ("~~~markdown\n```python\na\n```\n~~~", []),
    ],
    "code": [
        (f"```python\n{body}\n```", [code])
        for body, code in (
            ("\n\n  \na\n\n", "a"), ("if a:\n    b\n\nc", "if a:\n    b\n\nc"), ("  a\nb", "  a\nb"),
            ("    if a:\n        b", "if a:\n    b"), ("a\r\nb\r", "a\r\nb"), ("é = '🙂'", "é = '🙂'"),
        )
    ],
    "the fence's own indentation is no code": [
        ("  ```python\n  if a:\n      b\n c\n  ```", ["if a:\n    b\nc"]),
        ("- ```python\n  if a:\n    b\n  ```", ["if a:\n  b"]),
    ],
    "no code": [
        (f"{text}\n{CALC}", ["!empty", "1"])
        for text in ("```python\n```", "```python\n \n\n```", "```python```", "~~~py ~~~")
    ],
    "a misplaced fence that never ends": [("```python a\nb", ["!unclosed"])],
}  # fmt: skip


@pytest.mark.parametrize("rule", READ)
def test_what_is_read(rule, read):
    for text, items in READ[rule]:
        assert read(text) == items, text


def test_an_invented_output_ends_the_code(parse, read):
    text = f"```python\nprint(1)\n```output\n{CALC}\n```\n{CALC}"
    assert read(text) == ["print(1)", "1"]
    assert parse(text).content == f"```output\n{CALC}\n```\n"


@pytest.mark.parametrize(
    "text", ["```python print(1)```", "```py a\nb\n```", "```python title=x\nb\n```", "~~~python a~~~"]
)
def test_code_on_the_opening_line(text, parse, read):
    assert read(f"{text}\n{CALC}") == ["!malformed", "1"]
    (item, _) = parse(f"{text}\n{CALC}").items
    assert (item.raw, item.name) == (text, None)
    assert "```python\nCODE\n```" in item.message


def test_not_closed(parse):
    turn = parse("```python\nprint(1)\n")
    assert [(item.kind, item.span) for item in turn.items] == [("unclosed", (0, 19))]
    assert "```python\nCODE\n```" in turn.items[0].message
    assert turn.content == ""


def test_a_turn_is_read_up_to_256_items(parse, read):
    items = parse("```py\na\n```\n" * 300).items
    assert (len(items), items[-1].kind) == (257, "too_many_calls")
    assert read("```\na\n```\n" * 300 + CALC) == ["1"]
