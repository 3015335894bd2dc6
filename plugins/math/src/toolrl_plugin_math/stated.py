r"""Finds the answer that a text states: its last `\boxed{…}`, or a final answer stated behind it.

Boxes that belong together are one answer, as in math-verify (`extract_boxed_content` of latex2sympy2_extended):
`x=\boxed{1} or x=\boxed{2}` states 1, 2. Everything here is linear in the text's length.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

MAX_BOXES = 64
"""Maximum number of boxes that one answer consists of."""
CLOSE = 10
NEAR = 70
"""Two boxes are one answer if fewer than CLOSE characters stand between them, or fewer than NEAR with a separator."""
MAX_STATEMENT = 1000
"""Characters of a stated final answer that are read."""

_TOKEN = re.compile(r"\\boxed\s*\{|\\[{}]|\\\\(?!boxed)|[{}]")  # also \\\\boxed, of text that was escaped twice
_SEPARATOR = re.compile(r"\b(?:and|or)\b|,|;")
_FINAL = re.compile(
    r"\bfinal\s+answer\b(?:\s+(?:to|for|of)\b[^.\n$\\]{0,80}?)?(?:\*\*)?(?:\s+is\b|\s*[:=])(?:\*\*)?\s*:?",
    re.IGNORECASE,
)
_MATHEMATICS = re.compile(r"\s*(?:\*\*)?\s*(?:\$|\\[(\[]|\\[dt]?frac|\\sqrt|[-−+]?[€£¥₹]?\.?\d)")
_NUMBER = r"[-−+]?[$€£¥₹]?(?>(?:\d{1,3}(?:,\d{3})++(?!\d)|\d++)?(?:\.\d++)?(?:/\d++)?)(?<=\d)%?"
_LISTED = re.compile(
    rf"\s*(?:\*\*)?\s*(?P<list>{_NUMBER}(?>\s*(?:,\s+(?:(?:and|or)\s+)?|\s(?:and|or)\s+){_NUMBER})++)"
    r"(?:\*\*)?\s*(?:[.;!]?\s*\Z|[.;!]?\s*\n|[.;!]\s)"
)
_CHOSEN = re.compile(r"\b(?:answers?|option|choice)\b(?:\*\*)?(?:\s+(?:is|are)\b|\s*:)", re.IGNORECASE)
_PHRASE_END = re.compile(r"\*\*|\n|[;!?]|\.(?=\s[A-Z]|\s*\Z)(?<![A-J]\.)|,?\s(?:because|since|as)\b|,\s+not\b")
MAX_PHRASE = 200
"""Characters of an answer in words that are read."""
_TAG = re.compile(r"</?answer>", re.IGNORECASE)
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
MAX_WORDS = 3
"""Words, units and the like, in a tagged answer that is one formula."""
_ANSWER = re.compile(r"\banswers?\b(?:\s+(?:is|are)\b|\s*:)(?:\*\*)?\s*:?", re.IGNORECASE)


class Box(NamedTuple):
    r"""One `\boxed{…}`: [start, end) in the text, and what is in it."""

    start: int
    end: int
    content: str


def boxes(text: str) -> list[Box]:
    """All closed boxes, in order. Of nested ones only the inner ones."""
    found: list[Box] = []
    first = text.find("\\boxed")
    if first < 0:
        return found
    opened: list[tuple[int, int] | None] = []
    for token in _TOKEN.finditer(text, first):
        head = token.group()
        if head == "{":
            opened.append(None)
        elif head.startswith("\\boxed"):
            opened.append(token.span())
        elif head == "}" and opened:
            box = opened.pop()
            if box is not None and not (found and found[-1].start > box[0]):
                found.append(Box(box[0], token.end(), text[box[1] : token.start()].strip()))
    return found


def boxed_answer(text: str) -> tuple[str, int] | None:
    """The last box, with the boxes before it that belong to the same answer, and where it ends in the text; None if
    there is no box."""
    found = boxes(text)[-MAX_BOXES:]
    if not found:
        return None
    parts = [found[-1].content]
    for box, following in zip(found[-2::-1], found[:0:-1], strict=True):
        between = text[box.end : following.start]
        apart = len(between) >= NEAR or box.content == parts[-1] or not _SEPARATOR.search(between)
        if len(between) >= CLOSE and apart:
            break
        if box.content != parts[-1]:
            parts.append(box.content)
    return ", ".join(reversed(parts)), found[-1].end


def stated_answer(text: str, *, boxed_only: bool = False, lists: bool = True) -> str | None:
    r"""The part of a text that states its answer, as `\boxed{…}` or as text in which mathematics has to be found; None
    if there is none.

    A sentence such as "The final answer is $10,455$" behind the last box takes its place, because a box may hold the
    result of a step. With `boxed_only` nothing but a box counts. With `lists` a plain list such as `1 or 2` is one
    answer, of which math-verify would take the first number.
    """
    found = boxed_answer(text)
    if boxed_only:
        return None if found is None else f"\\boxed{{{found[0]}}}"
    if lists and (tagged := _tagged(text, 0 if found is None else found[1])) is not None:
        return tagged
    if (final := _final_statement(text, 0 if found is None else found[1], lists)) is not None:
        return final
    if found is not None:
        return f"\\boxed{{{found[0]}}}"
    return ((_listed(text) if lists else None) or text) if text.strip() else None


def _tagged(text: str, start: int) -> str | None:
    """What stands in the last `<answer>…</answer>` behind `start`, a formula as a box."""
    tags = list(_TAG.finditer(text, start))
    pairs = [(one, two) for one, two in pairwise(tags) if "/" not in one.group() and "/" in two.group()]
    inside = text[pairs[-1][0].end() : pairs[-1][1].start()].strip() if pairs else ""
    if not inside or "\\boxed" in inside:
        return None
    return inside if "$" in inside or len(_WORD.findall(inside)) > MAX_WORDS else f"\\boxed{{{inside}}}"


def stated_phrase(text: str) -> str | None:
    """What a text without a box says its answer is, in words: the phrase behind the last "The answer is" or "Answer:",
    or else its last line. None if it is empty or long."""
    if "\\boxed" in text:
        return None
    statements = list(_CHOSEN.finditer(text))
    rest = text[statements[-1].end() :] if statements else text.strip().rpartition("\n")[2]
    phrase = _PHRASE_END.split(rest[:MAX_PHRASE].strip().lstrip("*:_` \n"), maxsplit=1)[0]
    phrase = re.sub(r"\A(?:option|choice)\s+", "", phrase.strip("*_`'\" "), flags=re.IGNORECASE)
    return phrase or None


def _final_statement(text: str, start: int, lists: bool) -> str | None:
    """The last "final answer is …" behind `start` that mathematics follows."""
    for match in reversed(list(_FINAL.finditer(text, start))):
        if _MATHEMATICS.match(text, match.end()):
            rest = text[match.end() : match.end() + MAX_STATEMENT]
            listed = _LISTED.match(rest) if lists else None
            return f"\\boxed{{{listed['list']}}}" if listed else f"The final answer is {rest.lstrip()}"
    return None


def _listed(text: str) -> str | None:
    """A list of plain numbers that is stated as the answer, as a box: `The answer is 1 or 2` states neither alone."""
    for match in reversed(list(_ANSWER.finditer(text))):
        listed = _LISTED.match(text[match.end() : match.end() + MAX_STATEMENT])
        return f"\\boxed{{{listed['list']}}}" if listed else None
    return None
