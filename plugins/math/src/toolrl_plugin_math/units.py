r"""Compares answers that are numbers with something around them: `x = 12.5\text{ cm}^2` is 12.5.

Taken off are a box, dollar signs, a name, a unit, a degree sign, a sign of approximation. What then are equal texts or
plain numbers needs no mathematics; `question` is what math-verify is asked about the rest.
"""

from __future__ import annotations

import re

from toolrl.parsing.flags import EndFlags

BOXED = EndFlags(("boxed",))
LONGEST = 2000
"""Characters of an answer; a longer one is wrong."""
_UNITS = (
    "degrees?|deg|radians?|rad|square|sq|cubic|units?|millimeters?|mm|centimeters?|cm|decimeters?|dm|kilometers?|km|meters?|m"
    "|inches|inch|in|feet|foot|ft|yards?|yd|miles?|mi"
)
_UNIT = re.compile(
    rf"(?:\\(?:text|mathrm|textrm|mbox|mathbf|rm)\s*\{{\s*\.?(?:(?:{_UNITS})\b[\s.]*)+\}}|(?<![A-Za-z\\])(?:(?:{_UNITS})\b[\s.]*)+)"
    r"(?:\s*\^\s*(?:\{\s*[23]\s*\}|[23])|[²³])?\s*\.?\Z",
    re.IGNORECASE,
)
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree|°|\\circ")
_NAME = re.compile(
    r"\A(?:m\s*)?(?:\\angle\s*|∠\s*)?(?:[A-Za-z]{1,3}|\\(?:theta|alpha|beta|gamma|phi))\s*(?:=|\\approx|≈)\s*"
)
_SPACES = re.compile(r"\\[,;:! ]|~|\\q?quad")
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+(?:\.\d{1,300})?|\d{1,300}(?:\.\d{1,300})?|\.\d{1,300})")
_DECIMALS = 6
"""In which numbers have to agree, as in math-verify."""


def bare(answer: str) -> str:
    """An answer without what people add to a number."""
    boxed = BOXED.find(answer[:LONGEST])
    text = (answer[:LONGEST] if boxed is None else boxed).strip().strip("$").strip()
    text = _DEGREES.sub("", _SPACES.sub(" ", text)).strip()
    text = re.sub(r"\A(?:\\approx|≈|=)\s*", "", _NAME.sub("", text))
    shorter = _UNIT.sub("", text).strip()
    # A variable may be called like a unit: `m` alone, or `2m`, is an answer with a variable only where nothing is left.
    return shorter or text


def quick_verdict(answer: str, gold: str) -> bool | None:
    """Whether two answers are the same, as far as texts and plain numbers tell; None where mathematics is needed."""
    given, right = bare(answer).replace(" ", ""), bare(gold).replace(" ", "")
    if not given or len(answer) > LONGEST:
        return False
    if given == right:
        return True
    if not _NUMBER.fullmatch(given) or not _NUMBER.fullmatch(right):
        return None
    distance = float(given.replace(",", "")) - float(right.replace(",", ""))
    return round(distance, _DECIMALS) == 0


def question(answer: str, gold: str) -> tuple[list[str], str]:
    """What math-verify is asked: the right answers, and the text that gives one."""
    return [bare(gold)], f"\\boxed{{{bare(answer)}}}"
