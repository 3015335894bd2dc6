"""References in another system's YAML."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.errors import ConfigError
from toolrl_common.references import References, kept

ENVIRON = {"KEY": "secret", "TRICK": "${oc.env:KEY}", "EMPTY": ""}


def resolve(tree: Any) -> Any:
    return References(tree, ENVIRON.get, "tools.yaml").resolve(tree)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${oc.env:KEY}", "secret"),
        ("${KEY}", "secret"),
        ("a ${ oc.env:KEY } b", "a secret b"),
        ("${oc.env:NONE,here}", "here"),
        ("${oc.env:NONE, ${oc.env:KEY}}", "secret"),
        ("${oc.env:NONE,}", ""),
        ("${oc.env:EMPTY,x}", ""),
        ("${a.b}", 3),
        ("${a.list[1]}", "y"),
        ("${a.list.0}", "x"),
        ("${a}", {"b": 3, "list": ["x", "y"]}),
        ("n=${a.b}", "n=3"),
        ("${oc.select:a.none,5}", 5),
        ("${oc.select:a.none}", None),
        ("\\${KEY}", "${KEY}"),
        ("${TRICK}", "${oc.env:KEY}"),
        ("no reference", "no reference"),
    ],
)
def test_references(text: str, value: Any) -> None:
    assert resolve({"a": {"b": 3, "list": ["x", "y"]}, "value": text})["value"] == value


def test_relative_references() -> None:
    assert resolve({"a": {"b": 1, "c": "${.b}", "d": {"e": "${..b}"}}})["a"] == {"b": 1, "c": 1, "d": {"e": 1}}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": "${oc.env:NONE}"}, "a: '\\$\\{oc.env:NONE\\}' the environment variable NONE isn't set"),
        ({"a": "${none.b}"}, "names a key that isn't in the file"),
        ({"a": "${now:%Y}"}, "asks for the resolver 'now'"),
        ({"a": "${KEY"}, "isn't closed"),
        ({"a": "${b}", "b": "${a}"}, "refers to itself"),
        ({"a": "x${b}", "b": {"c": 1}}, "whole section"),
    ],
)
def test_what_can_not_be_resolved_is_told(tree: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(tree)
    assert "secret" not in str(caught.value)


def test_references_can_be_kept() -> None:
    tree = {"a": "${oc.env:HOME}/data", "b": "${a}/x", "c": "${oc.env:N,3}"}
    assert References(tree, kept).resolve(tree) == {"a": "${HOME}/data", "b": "${HOME}/data/x", "c": "${N:-3}"}


@given(st.recursive(st.text("${}.:,[]\\ab0", max_size=12), lambda inner: st.lists(inner, max_size=3), max_leaves=6))
def test_whatever_stands_there_is_resolved_or_refused(value: Any) -> None:
    with contextlib.suppress(ConfigError):
        resolve({"a": value, "b": "${a}"})
