r"""Judges answers by math-verify in a worker process; math-verify is imported here and in `equality.py` alone.

Work that takes too long, or doesn't end, ends when the parent kills the process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolrl_plugin_math import notation, typed
from toolrl_plugin_math.stated import boxed_answer, stated_phrase

MEMORY_BYTES = 4 * 2**30
"""Address space at most: an answer such as 9^{9^9} shall not take the machine's memory."""
MARK = "####"
_WORD = re.compile(r"[^\W\d_]{2,}")
_DOLLARS = re.compile(r"(?<!\\)\$")


def build(mode: str = "guarded") -> Callable[[dict[str, Any]], dict[str, str]]:
    """Answers a request with its verdict. In the mode `plain` math-verify judges alone, as it is."""
    _limit_memory()
    judge = _judge_plainly() if mode == "plain" else _judge()
    judge(["1/2"], "\\boxed{\\frac{1}{2}}")  # loads the rest of sympy, before a question's time begins
    return lambda request: {"verdict": judge(**request)}


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows; a lower hard limit; macOS
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


@dataclass(frozen=True)
class Reading:
    """An answer as it is compared."""

    written: str
    """LaTeX without its box or delimiters."""
    content: str
    """The same without a unit."""
    words: tuple[str, ...] | None
    """Set for an answer of letters."""
    unit: str | None
    """Known unit; empty for one that isn't known, None for none."""
    value: Any
    """The expression that math-verify found in a text; None if `content` has to be parsed."""

    def parse(self, content: str, *, keep_case: bool) -> Any:
        """The expression that `content`, a way to write this answer, stands for; None if it can't be parsed."""
        if self.value is not None and content == self.content and not keep_case:
            return self.value
        return _parse(notation.mixed_numbers(notation.elements_as_words(content)), keep_case)


def _judge() -> Callable[..., str]:
    from toolrl_plugin_math import equality

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    equality.install()
    read_gold = functools.lru_cache(maxsize=1024)(_read_gold)

    def judge(golds: list[str], text: str) -> str:
        """`right`, `wrong`, or `bad_gold` if no gold can be read."""
        truths = [truth for gold in golds if (truth := read_gold(gold)) is not None]
        if not truths:
            return "bad_gold"
        try:
            said = _read(text)
            if said is not None and any(_right(truth, said) for truth in truths):
                return "right"
            phrase = stated_phrase(text)
            chosen = [truth for truth in truths if truth.words is not None or notation.split_label(truth.written)]
            named = phrase is not None and any(_right(truth, _reading(phrase)) for truth in chosen)
            return "right" if named else "wrong"
        except Exception:  # noqa: BLE001 - a text that the library can't take is no answer
            return "wrong"

    return judge


def _judge_plainly() -> Callable[..., str]:
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    @functools.lru_cache(maxsize=1024)
    def read_gold(gold: str) -> tuple[Any, ...]:
        written = gold if "\\boxed" in gold or gold.count("$") == 2 else f"\\boxed{{{gold}}}"
        return tuple(parse(written, parsing_timeout=None))

    def judge(golds: list[str], text: str) -> str:
        """`right`, `wrong`, or `bad_gold` if no gold can be read."""
        try:
            read = [value for gold in golds for value in read_gold(gold)]
            if not read:
                return "bad_gold"
            said = parse(text, parsing_timeout=None)
            return "right" if verify(read, said, timeout_seconds=None) else "wrong"
        except Exception:  # noqa: BLE001 - a text that the library can't take is no answer
            return "wrong"

    return judge


def _read_gold(gold: str) -> Reading | None:
    """A ground truth; None for one that no answer can equal, such as a number in words."""
    text = notation.without_preamble(gold.rpartition(MARK)[2].strip())
    delimited = len(_DOLLARS.findall(text)) > 1 or "\\(" in text or "\\[" in text
    try:
        truth = _read(text if "\\boxed" in text or delimited else f"\\boxed{{{text}}}")
        if truth is None:
            return None
        if truth.words is not None:
            return None if notation.spells_a_number(truth.content) else truth
        if _parse(truth.content, False) is not None or notation.is_formula(truth.content):
            return truth  # one that math-verify can't parse is compared as text
        return None
    except Exception:  # noqa: BLE001 - what the library fails at can't be a ground truth
        return None


def _read(text: str) -> Reading | None:
    """An answer: the inside of a box or of one formula, else what math-verify finds in the text; None for none."""
    boxed = boxed_answer(text)
    content, value = notation.content_of(text) if boxed is None else boxed[0], None
    if content is None and (latex := typed.in_text(text)) != text and not _WORD.search(text):
        content = text.strip()  # a formula without delimiters
    elif content is None:
        content, value = _found(latex)
    return None if content is None or not content.strip() else _reading(content, value)


def _reading(content: str, value: Any = None) -> Reading:
    """An answer that is written as `content`; `value` if math-verify has parsed it."""
    content = notation.without_preamble(notation.content_of(content) or content.strip())
    content = re.sub(r"(?<=[\d}])[.,;]\Z", "", notation.without_braces(typed.as_latex(content)))
    words = notation.words(content)
    number, unit = notation.split_unit(content)
    if words is not None or unit is None:
        return Reading(content, content, words, None, value)
    return Reading(content, number, words, unit, None)


def _right(truth: Reading, said: Reading) -> bool:
    """Whether an answer is right. One that names a choice, as `B. 5`, may equal its letter or what it says."""
    if _same(truth, said):
        return True
    choice, named = notation.split_label(truth.written), notation.split_label(said.written)
    if choice is not None and named is not None:
        return choice[0] == named[0] and _same(_reading(choice[1]), _reading(named[1]))
    if named is not None:
        letter = truth.words is not None and len("".join(truth.words)) == 1
        return truth.words == (named[0].casefold(),) if letter else _same(truth, _reading(named[1]))
    return choice is not None and (said.words == (choice[0].casefold(),) or _same(_reading(choice[1]), said))


def _same(truth: Reading, said: Reading) -> bool:
    if truth.unit and said.unit and truth.unit != said.unit:
        return False
    if notation.as_text(truth.written) == notation.as_text(said.written):
        return True
    if truth.words is not None and said.words is not None:
        return truth.words == said.words
    if notation.open_ended(truth.content) != notation.open_ended(said.content):
        return False
    times = notation.time_of_day(truth.content), notation.time_of_day(said.content)
    if None not in times:
        return times[0] == times[1]
    gold, answer = _with_bases(truth.content, said.content)
    return any(
        _equal(truth, one, said, other)
        for one in notation.ways_to_read(gold)
        for other in notation.ways_to_read(answer)
    )


def _with_bases(gold: str, answer: str) -> tuple[str, str]:
    """Both texts with the bases of their numbers made comparable: digits of two bases are never equal, a base may be
    left off if the ground truth names it, and an answer's base counts if the ground truth names none."""
    if not notation.has_base(gold):
        return gold, notation.bases_as_values(answer)
    if not notation.has_base(answer):
        return notation.bases_left_off(gold), answer
    return notation.bases_as_symbols(gold), notation.bases_as_symbols(answer)


def _equal(truth: Reading, gold: str, said: Reading, answer: str) -> bool:
    from toolrl_plugin_math import equality

    (gold, in_percent), (answer, given_in_percent) = notation.split_percent(gold), notation.split_percent(answer)
    keep_case = notation.has_both_cases(gold) or notation.has_both_cases(answer)
    expected, given = truth.parse(gold, keep_case=keep_case), said.parse(answer, keep_case=keep_case)
    if expected is None or given is None:
        return False
    expected, has_percent = equality.without_percent(expected)
    given, given_has_percent = equality.without_percent(given)
    in_percent, given_in_percent = in_percent or has_percent, given_in_percent or given_has_percent
    if in_percent and not given_in_percent and equality.is_share(given):
        given = 100 * given
    sets = {"gold_is_set": notation.is_set(gold), "said_is_set": notation.is_set(answer)}
    return equality.equal(expected, given, **sets)


@functools.lru_cache(maxsize=1024)
def _parse(content: str, keep_case: bool) -> Any:
    """The expression that a formula stands for; None for one that math-verify can't parse."""
    from toolrl_plugin_math import equality

    with equality.case_of_symbols(keep=keep_case):
        found = _search(f"\\boxed{{{content}}}")
    return next((value for value in found if not isinstance(value, str)), None)


def _found(text: str) -> tuple[str | None, Any]:
    """The mathematics that math-verify finds in a text, as LaTeX and as an expression."""
    from toolrl_plugin_math import equality

    found = _search(text)
    value = next((value for value in found if not isinstance(value, str)), None)
    content = next((value.strip().rstrip(".") for value in found if isinstance(value, str)), None)
    if content is not None and value is not None and "%" not in content and equality.without_percent(value)[1]:
        content += "\\%"
    return content, value


def _search(text: str) -> list[Any]:
    """The expression that math-verify reads from a text, and its LaTeX."""
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig  # type: ignore[import-untyped]
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse  # type: ignore[import-untyped]

    # Units are off: the library takes `ab` in `2ab` and `t` in `x^2 t` for one.
    normal = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all")
    latex = LatexExtractionConfig(normalization_config=normal)
    return list(parse(text, [latex, ExprExtractionConfig()], parsing_timeout=None))
