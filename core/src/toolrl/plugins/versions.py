"""Checks a plugin's requirement on toolrl against the running version.

Most plugins write `toolrl>=0.1,<0.2`, and for that plain numbers are compared here. Everything else (markers, extras,
pre-releases, other operators, what isn't met) is left to `packaging`, whose import takes longer than that of all
plugins.
"""

from __future__ import annotations

CORE = "toolrl"


def unmet_requirement(requirement: str, running: str) -> tuple[str, bool] | None:
    """None where version `running` of toolrl meets the requirement, or it is one of another package.

    Else the versions that it asks for, and whether toolrl is older than these (if not, it is newer). Raises ValueError
    for a requirement that can't be read.
    """
    return None if _plainly_met(requirement, running) else _by_packaging(requirement, running)


def _plainly_met(requirement: str, running: str) -> bool:
    """True where the requirement is plainly met, or one of another package; False where `packaging` has to decide."""
    end = next((at for at, char in enumerate(requirement) if not (char.isalnum() or char in "-_.")), len(requirement))
    marker = requirement.partition(";")[2].strip()
    if requirement[:end].lower() != CORE or (marker.startswith("extra ==") and " or " not in marker):
        return True
    version = _release(running)
    for part in filter(None, map(str.strip, requirement[end:].split(","))):
        operator = ">=" if part.startswith(">=") else part[0]
        bound = _release(part.removeprefix(operator).strip())
        if operator not in (">=", "<") or version is None or bound is None or (version < bound) == (operator == ">="):
            return False
    return True


def _release(version: str) -> tuple[int, ...] | None:
    """A release's numbers without zeros at the end, as 0.1 and 0.1.0 are the same; None for anything else."""
    parts = version.split(".")
    if not all(map(str.isdecimal, parts)):
        return None
    numbers = [int(part) for part in parts]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _by_packaging(requirement: str, running: str) -> tuple[str, bool] | None:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion, Version

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
