"""The plain form of a requirement is judged as `packaging` judges it."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from toolrl.plugins import versions
from toolrl.plugins.versions import unmet_requirement


@pytest.mark.parametrize("running", ["0", "0.1", "0.1.0", "0.1.3", "0.2", "1", "1.0.1"])
@pytest.mark.parametrize("shape", ["toolrl{}", "toolrl ({})", "toolrl[train]{}"])
@pytest.mark.parametrize(
    "bounds", [">=0.1", "<0.1", "< 0.1.0", ">=0.1,<0.2", ">= 0.1.1, <1", ">=1.0,<1.0.1", ">=0.0,<2"]
)
def test_plain_requirements(bounds: str, running: str, shape: str) -> None:
    requirement = shape.format(bounds)
    assert (unmet_requirement(requirement, running) is None) == Requirement(requirement).specifier.contains(running)


def test_the_plain_form_needs_no_packaging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_by_packaging", None)
    for requirement in ("toolrl>=0.1,<0.2", "toolrl>=0.1, <0.2", "toolrl"):
        assert unmet_requirement(requirement, "0.1.4") is None
