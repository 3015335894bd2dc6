"""A plugin's requirement on toolrl against the running version."""

from __future__ import annotations

import pytest

from toolrl.plugins.versions import unmet_requirement


@pytest.mark.parametrize(
    ("requirement", "unmet"),
    [
        ("toolrl>=0.1,<0.2", None),
        ("toolrl", None),
        ("another>=9", None),
        ("toolrl>=9; extra == 'train'", None),
        ("toolrl>=0.2,<0.3", ("<0.3,>=0.2", True)),
        ("toolrl<0.1.2", ("<0.1.2", False)),
        ("toolrl==1.*", ("==1.*", True)),
    ],
)
def test_requirements(requirement: str, unmet: tuple[str, bool] | None) -> None:
    assert unmet_requirement(requirement, "0.1.4") == unmet


def test_what_is_no_requirement_is_told() -> None:
    with pytest.raises(ValueError, match="toolrl >> 1"):
        unmet_requirement("toolrl >> 1", "0.1.4")
