"""Values to JSON and back."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl_plugin_reasoning_gym.worker import pack, unpack

KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.fractions()
PLAIN = KEYS | st.floats(allow_nan=False) | st.decimals(allow_nan=False)
VALUES: st.SearchStrategy[Any] = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS | st.tuples(KEYS), inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$tuple", "$set", "$dict", "$fraction", "a"]), inner, max_size=2)
        | st.sets(KEYS | st.tuples(KEYS), max_size=4)
    ),
    max_leaves=12,
)


def kinds(value: Any) -> Any:
    """The value with the types in it, which `==` doesn't tell apart."""
    if isinstance(value, dict):
        return dict, [(kinds(key), kinds(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [kinds(item) for item in value]
    return type(value), value


@given(VALUES)
def test_what_comes_back_is_what_went_in(value: Any) -> None:
    back = unpack(json.loads(json.dumps(pack(value))))
    assert back == value
    assert kinds(back) == kinds(value)


def test_plain_objects_stay_readable() -> None:
    assert pack({"a": [1, "b", None, 0.5]}) == {"a": [1, "b", None, 0.5]}
    assert pack({"n": (1, 2)}) == {"n": {"$tuple": [1, 2]}}
    assert pack({1: 2}) == {"$dict": [[1, 2]]}
    assert pack(Fraction(1, 3)) == {"$fraction": "1/3"}
    assert pack(Decimal("0.10")) == {"$decimal": "0.10"}


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="type object"):
        pack({"a": [object()]})


@pytest.mark.parametrize(
    "value",
    [{"$tuple": 1}, {"$set": [[]]}, {"$dict": [1]}, {"$dict": [[[], 1]]}, {"$fraction": "1/0"}, {"$decimal": "x"}],
)
def test_a_marked_object_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"\$"):
        unpack([value])
