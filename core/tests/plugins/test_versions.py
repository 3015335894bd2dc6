"""The plain form of a requirement is judged as `packaging` judges it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from toolrl.plugins import versions
from toolrl.plugins.versions import unmet_requirement

NUMBERS = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
BOUNDS = st.lists(st.tuples(st.sampled_from([">=", "<", " >= ", "< "]), NUMBERS).map("".join), max_size=3)


@given(bounds=BOUNDS, running=NUMBERS, shape=st.sampled_from(["toolrl{}", "toolrl ({})", "toolrl[train]{}"]))
def test_plain_requirements(bounds: list[str], running: str, shape: str) -> None:
    requirement = shape.format(",".join(bounds)) if bounds else "toolrl"
    assert (unmet_requirement(requirement, running) is None) == Requirement(requirement).specifier.contains(running)


def test_the_plain_form_needs_no_packaging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_by_packaging", None)
    for requirement in ("toolrl>=0.1,<0.2", "toolrl>=0.1, <0.2", "toolrl"):
        assert unmet_requirement(requirement, "0.1.4") is None
