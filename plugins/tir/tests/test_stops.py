"""What ends generation now, and what a stop means."""

from __future__ import annotations

import pytest

from toolrl_plugin_tir.parser import TirParser

CONTENT = ("```", "~~~", "</python>", "</calculator>")


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("", CONTENT),
        ("Let me see", CONTENT),
        ("```", ("```",)),
        ("```py", ("```",)),
        ("```python\n", ("```",)),
        ("```python\nx\n", ("```",)),
        ("```json\n", ("```",)),
        ("~~~python\nx ```", ("~~~",)),
        ("`````python\nx\n```\n", ("`````",)),
        ("`````python\nx\n```", ("`````", "``")),
        ("~~~~\nx\n~~~", ("~~~~", "~")),
        ("see ```", CONTENT),
        ("see ```python\n", ("```",)),
        ("see ```x```", CONTENT),
        ("```x```", CONTENT),
        ("```json\n{}\n```", CONTENT),
        ("```json\n{}\n```\nx ```", CONTENT),
        ("```json\n{}\n    ```", ("```",)),
        ("```json\n{}\n```\n", CONTENT),
        ("<pyth", CONTENT),
        ("<python>", ("</python>",)),
        ("<python>\n```python\nx\n```", ("</python>",)),
        ("<python>s = '</python>'", ("</python>",)),
        ("<calculator>1", ("</calculator>",)),
        ("2</calculator> ", CONTENT),
    ],
)
def test_stops_depend_on_the_text(text, stops):
    assert TirParser().stops(text) == (*stops, "</think>")
    assert TirParser().stops(f"<think>```python\n</think>\n{text}") == stops
    # The prompt may have opened the block.
    assert TirParser().stops(f"```python\n</think>\n{text}") == stops


def test_stops_in_thinking():
    assert TirParser().stops("<think>```python\n") == ("</think>",)
    assert TirParser().stops("a</think>b<think>") == ("</think>",)


@pytest.mark.parametrize(
    ("text", "stopped_by", "code"),
    [
        ("```python\nx\n```", "```", "x"),
        ("```python\nx\n```\n\n", "```", "x"),
        ("```python\nx\n", "```", "x"),
        ("```python\nx\n  ", "```", "x"),
        ("```python\ns = '```'\nx\n", "```", "s = '```'\nx"),
        ("a: ```python\nx\n", "```", "x"),
        ("~~~python\nx\n", "~~~", "x"),
        ("`````python\nx\n", "`````", "x"),
        ("<python>x</python>", "</python>", "x"),
        ("<python>x</python>\n", "</python>", "x"),
        ("<python>x", "</python>", "x"),
        ("<python>\ns = '</python>'\nx\n", "</python>", "s = '</python>'\nx"),
        ("<python>\n```python\nx\n```\n", "</python>", "x"),
        ("<calculator>1+2", "</calculator>", "1+2"),
        ("<calculator>1+2</calculator>.", "</calculator>", "1+2"),
        ("```x``` <calculator>1</calculator>", "</calculator>", "1"),
        ("```python print(1)```", "```", "!malformed"),
        ("```python\n", "```", "!empty"),
        ("2</calculator>", "</calculator>", "!stray_close"),
    ],
)
def test_a_stop_that_completes_an_item(text, stopped_by, code, parse, read):
    assert read(text, stopped_by=stopped_by) == [code]
    assert parse(text, stopped_by=stopped_by).status == "calls"


@pytest.mark.parametrize(
    ("text", "stopped_by"),
    [
        ("```", "```"),
        ("Let me see", "```"),
        ("see ```", "```"),
        ("see ```x```", "```"),
        ("```json\nx\n```", "```"),
        ("```python", "```"),
        ("```python\nx = '```", "```"),
        ("```python\nx = '```\n", "```"),
        ("```python\nx\n      ```", "```"),
        ("````python\nx\n```", "```"),
        ("````python\nx\n", "```"),
        ("```python\nx\n", "~~~"),
        ("```python\nx\n</python>", "</python>"),
        ("<python>\n```", "```"),
        ("<python>s = '</python>'", "</python>"),
        ("<python>s = '</python>'\n", "</python>"),
        ("<python><calculator>1</calculator>", "</calculator>"),
        ("<calculator>1</python>", "</python>"),
        ("<think>```python\nx\n```", "```"),
        ("<think><calculator>1</calculator>", "</calculator>"),
        ("<think>hm</think>", "</think>"),
        ("hm</think>", "</think>"),
    ],
)
def test_a_stop_that_completes_nothing_lets_generation_go_on(text, stopped_by, parse):
    assert parse(text, stopped_by=stopped_by).status == "continue"


@pytest.mark.parametrize("stopped_by", [None, "</answer>", "~~~", "```"])
def test_only_its_own_stop_closes_a_call(stopped_by, read):
    for text in ("<python>x", "<calculator>1", "````python\nx\n"):
        assert read(text, stopped_by=stopped_by) == ["!unclosed"]
