"""Checks a plugin's requirement on toolrl against the running version."""

from __future__ import annotations

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

CORE = "toolrl"


def unmet_requirement(requirement: str, running: str) -> tuple[str, bool] | None:
    """None where version `running` of toolrl meets the requirement, or it is one of another package.

    Else the versions that it asks for, and whether toolrl is older than these (if not, it is newer). Raises ValueError
    for a requirement that can't be read.
    """
    try:
        need = Requirement(requirement)
    except InvalidRequirement as error:
        raise ValueError(str(error)) from error
    applies = need.marker is None or need.marker.evaluate({"extra": ""})
    if need.name.lower() != CORE or not applies or need.specifier.contains(running, prereleases=True):
        return None
    for part in need.specifier:
        try:
            bound = Version(part.version.removesuffix(".*"))
        except InvalidVersion:  # `===` takes any text.
            continue
        if part.operator in (">=", ">", "==", "~=") and bound > Version(running):
            return str(need.specifier), True
    return str(need.specifier), False
