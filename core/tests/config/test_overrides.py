"""`--set`: values from the command line."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.config.load import check_config
from toolrl.config.override import apply_overrides
from toolrl.config.paths import format_path, parse_path
from toolrl.errors import ConfigError
from toolrl.plugins.registry import Registry


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a", ("a",)),
        ("a.b-c.d_e", ("a", "b-c", "d_e")),
        ("tools[0].options", ("tools", 0, "options")),
        ("tools.0.options", ("tools", "0", "options")),
        ('named["a.b"].c', ("named", "a.b", "c")),
        ("a[1][2]", ("a", 1, 2)),
    ],
)
def test_paths(text: str, path: tuple[str | int, ...]) -> None:
    assert parse_path(text) == path
    if ".0." not in text:
        assert format_path(path) == text


@pytest.mark.parametrize("text", ["", ".a", "a..b", "a[", "a[x]", "a]b", "a.", "a[0]b"])
def test_what_is_no_path(text: str) -> None:
    with pytest.raises(ValueError, match="no path"):
        parse_path(text)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a.b=5", {"a": {"b": 5}, "tools": ["t", {"use": "u"}]}),
        ("a.x=1e-3", {"a": {"b": 1, "x": 0.001}, "tools": ["t", {"use": "u"}]}),
        ("new.deep.key=[x, 1]", {"a": {"b": 1}, "new": {"deep": {"key": ["x", 1]}}, "tools": ["t", {"use": "u"}]}),
        ("a=", {"a": None, "tools": ["t", {"use": "u"}]}),
        ("a.b='5'", {"a": {"b": "5"}, "tools": ["t", {"use": "u"}]}),
        ("a.b=x=y", {"a": {"b": "x=y"}, "tools": ["t", {"use": "u"}]}),
        ("tools[0].options.x=1", {"a": {"b": 1}, "tools": [{"use": "t", "options": {"x": 1}}, {"use": "u"}]}),
        ("tools[0].markers.t=1", {"a": {"b": 1}, "tools": [{"use": "t", "markers": {"t": 1}}, {"use": "u"}]}),
        ("tools.1.options.x=1", {"a": {"b": 1}, "tools": ["t", {"use": "u", "options": {"x": 1}}]}),
        ("tools[2]=v", {"a": {"b": 1}, "tools": ["t", {"use": "u"}, "v"]}),
        ("tools[2].use=v", {"a": {"b": 1}, "tools": ["t", {"use": "u"}, {"use": "v"}]}),
        ("tools=[]", {"a": {"b": 1}, "tools": []}),
    ],
)
def test_a_value_is_put_in_its_place(override: str, expected: Any) -> None:
    tree: Any = {"a": {"b": 1}, "tools": ["t", {"use": "u"}]}
    _, problems = apply_overrides(tree, [override])
    assert (tree, problems) == (expected, [])


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("a.b", "--set a.b: expected PATH=VALUE"),
        ("a..b=1", "--set a..b=1: 'a..b' is no path"),
        ("a.b.c=1", "--set a.b.c=1: a.b is 1, which has nothing in it to set"),
        ("tools[5]=1", "--set tools[5]=1: tools is a list of 2 items, so 5 is no place in it"),
        ("tools.x=1", "--set tools.x=1: tools is a list of 2 items, so 'x' is no place in it"),
        ("a.b=[1", "--set a.b: not valid YAML"),
    ],
)
def test_what_cannot_be_set_is_a_problem(override: str, problem: str) -> None:
    tree: Any = {"a": {"b": 1}, "tools": ["t", {"use": "u"}]}
    _, problems = apply_overrides(tree, [override])
    assert len(problems) == 1
    assert problems[0].startswith(problem)
    assert tree == {"a": {"b": 1}, "tools": ["t", {"use": "u"}]}


def test_problems_of_overrides_stand_beside_those_of_the_file(tree: dict[str, Any], registry: Registry) -> None:
    tree["seed"] = -1
    with pytest.raises(ConfigError) as caught:
        check_config(tree, ["nonsense", "trainer.steps=0"], registry=registry)
    assert caught.value.problems == [
        "--set nonsense: expected PATH=VALUE, such as trainer.steps=50",
        "trainer.steps: Input should be ≥ 1 (got 0) (by --set)",
        "seed: Input should be ≥ 0 (got -1)",
    ]
