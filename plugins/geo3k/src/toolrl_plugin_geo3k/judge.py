r"""Whether an answer to a geometry problem is right.

Ground truths are numbers, radicals and fractions in LaTeX, `2 \sqrt { 221 }`. What a model adds for people is taken off
both first: a box, dollar signs, a name, a unit, a degree sign, a sign of approximation. What then are equal texts or
plain numbers needs no mathematics; about the rest math-verify is asked, in a process of its own.
"""

from __future__ import annotations

import re
from fractions import Fraction

from toolrl.errors import RewardError
from toolrl.parsing.flags import EndFlags
from toolrl_plugin_math.quantity import close
from toolrl_plugin_math.verifier import Verifier

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


def bare(answer: str) -> str:
    r"""An answer without what people add to a number: `x = 12.5\text{ cm}^2` is 12.5."""
    boxed = BOXED.find(answer[:LONGEST])
    text = (answer[:LONGEST] if boxed is None else boxed).strip().strip("$").strip()
    text = _DEGREES.sub("", _SPACES.sub(" ", text)).strip()
    text = re.sub(r"\A(?:\\approx|≈|=)\s*", "", _NAME.sub("", text))
    shorter = _UNIT.sub("", text).strip()
    # A variable may be called like a unit: `m` alone, or `2m`, is an answer with a variable only where nothing is left.
    return shorter or text


class GeometryJudge:
    """Judges answers of one reward or tool."""

    def __init__(self, workers: int, timeout: float) -> None:
        self._verifier = Verifier(workers, timeout)

    async def right(self, answer: str, ground_truth: str) -> bool:
        r"""Whether an answer, in a `\boxed{…}` or as it is, equals the ground truth. One that takes too long is wrong.
        Raises RewardError for a ground truth that can't be read as mathematics."""
        given, gold = bare(answer), bare(ground_truth)
        plain, right = given.replace(" ", ""), gold.replace(" ", "")
        if not plain or len(answer) > LONGEST:
            return False
        if plain == right:
            return True
        if _NUMBER.fullmatch(plain) and _NUMBER.fullmatch(right):
            return close(Fraction(plain.replace(",", "")), Fraction(right.replace(",", "")))
        verdict = await self._verifier.judge([gold], f"\\boxed{{{given}}}")
        if verdict == "bad_gold":
            raise RewardError(
                f"the ground truth {ground_truth!r:.80} can't be read as mathematics",
                hint="Give a number or LaTeX, such as `2 \\sqrt{221}`.",
            )
        return verdict == "right"

    def close(self) -> None:
        """End the worker processes."""
        self._verifier.close()
