"""Names of settings in verl and TRL: the table of the guide and that of the messages say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolrl.config.other_names import OTHER_NAMES, TRL, VERL

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "come-from-verl-or-trl.md"
COLUMNS = {VERL: 1, TRL: 2}


def rows() -> list[list[str]]:
    """The rows of the page's tables, a text for each cell."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line.strip("|").split(" | ") for line in lines if line.startswith("| ") and line.count(" | ") == 3]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def names_setting(cell: str, setting: str) -> bool:
    """Whether a cell names a setting; only the first of several has its section there."""
    section, _, key = setting.rpartition(".")
    written = code(cell)
    return setting in written or (key in written and any(it.startswith(f"{section}.") for it in written))


@pytest.mark.parametrize("setting", OTHER_NAMES)
def test_the_guide_has_the_same_names(setting: str) -> None:
    found = [row for row in rows() if names_setting(row[3], setting)]
    assert found, f"the guide has no row for {setting}"
    for system, names in OTHER_NAMES[setting].items():
        for name in names:
            assert any(name in code(row[COLUMNS[system]]) for row in found), f"{setting}: {system}'s {name}"
