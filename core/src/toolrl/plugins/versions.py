"""Checks a plugin's requirement on toolrl against the running version.

Most plugins ask in the same words, `toolrl>=0.1,<0.2`, and for those plain numbers are compared here. Everything else
(markers, pre-releases, other operators, what isn't met) is left to `packaging`, whose import takes longer than that of
all plugins.
"""

from __future__ import annotations

import re

CORE = "toolrl"

_RELEASE = re.compile(r"\d+(?:\.\d+)*\Z")
_PLAIN = re.compile(rf"{CORE}(?:\[[\w,\s.-]*\])?(?P<bounds>[\d.,<>=\s]*)\Z")
_NAME = re.compile(r"\s*([\w.-]+)")
_OF_AN_EXTRA = re.compile(r""";\s*extra\s*==\s*(?:'[^']*'|"[^"]*")\s*\Z""")
_BOUND = re.compile(r"\s*(?P<operator>>=|<)\s*(?P<version>\d+(?:\.\d+)*)\s*\Z")


def unmet_requirement(requirement: str, running: str) -> tuple[str, bool] | None:
    """None where version `running` of toolrl meets the requirement, or it is one of another package.

    Else the versions that it asks for, and whether toolrl is older than these (if not, it is newer). Raises ValueError
    for a requirement that can't be read.
    """
    return None if _plainly_met(requirement, running) else _by_packaging(requirement, running)


def _plainly_met(requirement: str, running: str) -> bool:
    """True where the requirement is plainly met, or not one on toolrl at all; False says nothing."""
    name = _NAME.match(requirement)
    if (name is not None and name[1].lower() != CORE) or _OF_AN_EXTRA.search(requirement):
        return True
    plain = _PLAIN.match(requirement)
    if plain is None or not _RELEASE.match(running):
        return False
    version = _release(running)
    for part in plain["bounds"].split(",") if plain["bounds"].strip() else ():
        bound = _BOUND.match(part)
        if bound is None or (version < _release(bound["version"])) == (bound["operator"] == ">="):
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    """A release's numbers without zeros at the end: 0.1 and 0.1.0 are the same."""
    numbers = [int(part) for part in version.split(".")]
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
