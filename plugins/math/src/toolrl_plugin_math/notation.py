r"""How answers are written: words, units, bases, exponents, read off the LaTeX before math-verify parses it.

math-verify takes letters for factors (`BDAC` equals `ABCD`), and drops a supposed unit (`x^2 t` becomes `x^2`) and an
index behind digits (`11_2` becomes 11). Here such text is recognised, and compared as it is or rewritten for it.
"""

from __future__ import annotations

import re

_TEXT = r"\\(?:text(?:bf|it|rm|normal|sf|tt|up)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname)\s*"
_TEXT_BOX = re.compile(_TEXT + r"\{((?:[^{}]|\{\})*)\}")
_SPACES = re.compile(r"(?:\\[,;:! ]|~|\\q?quad\b|\s)+")
_SPACES_BESIDE = re.compile(r"(?<![\d.]) | (?![\d.])")
_FIGURE = re.compile(r"\\(?:angle|triangle|overline|overrightarrow|widehat|vec|square)(?![A-Za-z])")
_LETTERS = re.compile(r"[^\W\d_]+(?:[ ,;.'’/&-]+[^\W\d_]+)*")
_ENDS = re.compile(r"(?i)\A\s*(?:so\s+|therefore,?\s+)?(?:the\s+)?(?:final\s+|correct\s+)?answer\s*(?:is|:)\s*:?\s*")
_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\[", "\\]"), ("\\(", "\\)"))

_NUMBER_WORD = re.compile(
    r"zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|fou?r|fif|six|seven|eigh|nine)ty|(?:hundred|thousand|million|billion|trillion)s?"
)
_FRACTION_WORD = re.compile(r"one|half|halves|thirds?|quarters?|fourths?|fifths?|dozen")

_UNITS = {
    "millimet(?:er|re)s?|mm": "mm",
    "centimet(?:er|re)s?|cms?": "cm",
    "decimet(?:er|re)s?|dm": "dm",
    "kilomet(?:er|re)s?|kms?": "km",
    "met(?:er|re)s?|m": "m",
    "inch(?:es)?|ins?": "in",
    "feet|foot|ft": "ft",
    "yards?|yds?": "yd",
    "miles?|mi": "mi",
    "milligrams?|mg": "mg",
    "kilograms?|kgs?": "kg",
    "grams?|gm|g": "g",
    "pounds?|lbs?": "lb",
    "ounces?|oz": "oz",
    "seconds?|secs?|s": "s",
    "minutes?|mins?": "min",
    "hours?|hrs?|h": "h",
    "days?": "d",
    "weeks?": "week",
    "months?": "month",
    "years?|yrs?": "year",
    "millilit(?:er|re)s?|m[lL]": "mL",
    "lit(?:er|re)s?|L": "L",
    "miles per hour|mph": "mph",
    "km/h|kmph|kilomet(?:er|re)s? per hour": "km/h",
    "m/s|met(?:er|re)s? per second": "m/s",
    "degrees?|deg": "deg",
    "radians?|rad": "rad",
    "dollars?|USD": "dollar",
    "cents?": "cent",
    "euros?|EUR": "euro",
    "[Aa]\\.?[Mm]\\.?": "am",
    "[Pp]\\.?[Mm]\\.?": "pm",
    "units?": "unit",
}
_UNIT = "|".join(f"(?P<u{index}>{names})" for index, names in enumerate(_UNITS))
_POWER = r"(?P<power>\s*\^\s*\{?\s*(?P<exponent>[23])\s*\}?|(?P<raised>[²³]))?"
_UNIT_AT_END = re.compile(
    rf"(?P<before>.*?\S)(?:\s|\\[,;:! ]|~)*+(?P<text>{_TEXT}\{{\s*)?(?P<area>square |sq\.? |cubic |cu\.? )?"
    rf"(?:\b|(?<=\d)(?=[A-Za-z]{{2}}))(?:{_UNIT})"
    rf"(?(text)\s*{_POWER.replace('?P<', '?P<in')}\s*\.?\s*\}}){_POWER}\s*\.?\s*",
    re.DOTALL,
)
_IN_BRACES = re.compile(
    rf"(?P<before>.*?[\d}}])(?:\s|\\[,;:! ]|~)*+(?:{_TEXT}\{{\s*(?P<letter>[KNJWVC])\s*\}}"
    rf"|\^?\s*\{{?\s*(?:{_TEXT}\{{)?\s*(?P<ordinal>st|nd|rd|th)\b[\s}}]*)",
    re.DOTALL,
)
"""A unit of one letter, which bare would be a variable, or the end of an ordinal number."""
_CURRENCIES = {
    "\\$": "dollar",
    "$": "dollar",
    "€": "euro",
    "\\euro": "euro",
    "£": "pound",
    "\\pounds": "pound",
    "¥": "yen",
    "₹": "rupee",
}
_CURRENCY = re.compile(r"(?P<sign>[-+]?)\s*+(?P<name>\\?\$|[€£¥₹]|\\euro(?![a-z])|\\pounds(?![a-z]))\s*(?=[-\d.\\])")
_TIME = re.compile(r"0?(\d{1,2})\s*:\s*(\d{2})(?:\s*:\s*(\d{2}))?")
_RELATION = re.compile(r"\s*(?:[<>]|\\(?:[lg](?:e|eq|t|eqslant)|neq?)(?![A-Za-z]))")
_DOTS = re.compile(r"(?<!\d)(?:\\[lc]?dots|\.\.\.|…)|(?<!\.)\b\d+\s*(?:\\[lc]?dots|\.\.\.|…)")
"""Dots of a list, not those of a decimal such as 3.14..."""
_LABEL_IN_TEXT = re.compile(_TEXT + r"\{\s*(?:\((?P<a>[A-J])\)|(?P<b>[A-J])[).:])\s*(?P<inside>[^{}]*)\}[\s.:]*")
_LABEL = re.compile(
    r"\s*(?:\((?P<a>[A-J])\)|(?P<b>[A-J])[).:])(?:\s|\\[,;: ]|~|\\quad)+"
    r"(?![-+*/^=<>&|,]\s|[(\[]|\\(?:c[au]p|times|cdot|to|in|subset|Rightarrow|perp|parallel|sim|cong|[lg]eq?|neq?)\b)(?=\S)"
)
_OTHER_LABEL = re.compile(r"(?<![A-Za-z])[A-J][).:]")
_DEGREES = re.compile(
    r"(?:\^\s*\{?\s*\\circ\s*\}?|\\degree|°)\s*(?P<scale>(?:\\(?:text|mathrm)\s*\{\s*[CF]\s*\}|[CF])?)\s*\Z"
)
_WORDS_AT_END = re.compile(
    rf"(?P<before>.*?[\d}})])(?:\s|\\[,;:! ]|~)*+(?:{_TEXT}\{{(?P<text>[^{{}}]*)\}}(?:\s*\^\s*\{{?\d\}}?)?"
    r"|(?<=[\s~])(?P<bare>(?:per|each|[^\W\d_]{4,})(?:\s+[^\W\d_]+)*))\s*\.?\s*",
    re.DOTALL,
)
_OPEN = re.compile(r"[_=+*/^,({\-]\s*\Z")
_BASE = re.compile(
    r"(?<![\w\\}.])(?P<digits>\d[0-9A-Fa-f]*(?:\.[0-9A-Fa-f]+)?|[A-F][0-9A-F]+(?=\s*_\s*\{?\s*1[1-6]\b)|\(\s*\d[0-9A-Fa-f]*\s*\))"
    r"\s*_\s*(?:\{(?P<base>[^{}]*(?:\{[^{}]*\}[^{}]*)?)\}|(?P<digit>\d))"
    r"|(?<![\w\\}.])(?P<plain>\d[0-9A-Fa-f]*)\s*(?:\\text\s*\{\s*)?(?:,\s*)?(?:\(\s*)?\bbase[\s-]*(?:\}\s*)?"
    r"(?P<said>\d{1,2}|[a-z]+)\b(?:\s*\))?\s*\}?"
)
_BASE_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_BASE_WORDS |= {"eleven": 11, "twelve": 12, "sixteen": 16}
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+(?:\.\d*)?|\.\d+)\s?[eE]([+-]?\d{1,4})(?![\w.])")
_MIXED = re.compile(r"(?<![\d.,])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.,])")
_EULER = re.compile(r"\d+\s?e[+-]?[1-9]")
_LETTER_ELEMENT = re.compile(
    r"(?<=[,(\[{=;])(\s*)([A-Za-z]{2,})(?=\s*(?:[,)\];=]|\\\}|\Z))|\A(\s*)([A-Za-z]{2,})(?=\s*[,;])"
)
_FUNCTION = re.compile(r"(?i)and|or|inf|infinity|pi|sin|cos|tan|log|ln|exp|sqrt|gcd|lcm|mod|det|max|min")


def content_of(text: str) -> str | None:
    r"""The inside of a text that is one formula as a whole, `$…$`, `\(…\)`, `\[…\]`; None for all else."""
    text = text.strip()
    for first, last in _DELIMITERS:
        inside = text[len(first) : len(text) - len(last)]
        if (
            len(text) > len(first) + len(last)
            and text.startswith(first)
            and text.endswith(last)
            and first not in inside
        ):
            return inside.strip()
    return None


def without_preamble(text: str) -> str:
    """A text without `The answer is` before it and the full stop behind it."""
    shorter = _ENDS.sub("", text)
    return shorter if shorter == text else re.sub(r"\.\s*\Z", "", shorter)


def without_braces(content: str) -> str:
    r"""A formula that stands in `\text{}` as a whole, without that."""
    whole = _TEXT_BOX.fullmatch(content)
    return whole[1].strip() if whole and re.search(r"\d", whole[1]) else content


def as_text(content: str) -> str:
    """A formula as it is compared letter by letter: without the size of its brackets and fractions, and without spaces,
    but for those that part two numbers."""
    text = re.sub(r"\\[dtc]frac\b", r"\\frac", re.sub(r"\\(?:left|right)\b(?!arrow)", "", content))
    return _SPACES_BESIDE.sub("", _SPACES.sub(" ", _TEXT_BOX.sub(r"\1", text)))


def is_formula(content: str) -> bool:
    """Whether a text may be LaTeX that a reader understands: it has a letter or a digit, and its braces are closed."""
    braces = re.sub(r"\\\\|\\[{}]|[^{}]", "", content)
    while "{}" in braces:
        braces = braces.replace("{}", "")
    return not braces and any(character.isalnum() for character in content)


def words(content: str) -> tuple[str, ...] | None:
    """The words of an answer that consists of letters, as they are compared; None for all else.

    White space and case don't count. A list with `and` or `or` is sorted.
    """
    content = _FIGURE.sub("", content)
    text = _SPACES.sub(" ", _TEXT_BOX.sub(r"\1", _TEXT_BOX.sub(r"\1", content)))
    text = text.replace("$", "").replace("{", "").replace("}", "").strip(" .\"'`*:")
    if text.startswith("(") and text.endswith(")") and "," not in text:
        text = text[1:-1].strip()
    elif re.fullmatch(r"\(?[A-Za-z][).]", text):  # a choice: `C)`
        text = text.strip("().")
    if not _LETTERS.fullmatch(text):
        return None
    text = text if has_both_cases(" ".join(re.findall(r"\b[A-Za-z]\b", text))) else text.casefold()
    parts = re.split(r"\s*(?:,\s*(?:and|or)\s|\s(?:and|or)\s|[,;/&])\s*", text)
    found = [re.sub(r"[\s.'’-]+", "", part) for part in parts]
    return tuple(sorted(found) if re.search(r"\s(?:and|or)\s", text.casefold()) else found)


def spells_a_number(content: str) -> bool:
    """Whether an answer of letters holds a number in words, as `forty two` and `two thirds` do."""
    said = re.findall(r"[^\W\d_]+", _TEXT_BOX.sub(r"\1", content).casefold())
    return any(map(_NUMBER_WORD.fullmatch, said)) or (bool(said) and all(map(_FRACTION_WORD.fullmatch, said)))


def split_unit(content: str) -> tuple[str, str | None]:
    """An answer without the unit behind its number, and the unit: None for none, empty for one that isn't known."""
    if match := _CURRENCY.match(content):
        return match["sign"] + split_unit(content[match.end() :])[0], _CURRENCIES[match["name"]]
    if (match := _DEGREES.search(content)) and re.search(r"\d", content[: match.start()]):
        scale = re.sub(r"[^CF]", "", match["scale"].rpartition("{")[2] if "{" in match["scale"] else match["scale"])
        return content[: match.start()].strip(), "deg" + scale
    if (match := _UNIT_AT_END.fullmatch(content)) and _may_have_unit(match["before"], braced=match["text"] is not None):
        groups = match.groupdict()
        name = next(unit for index, unit in enumerate(_UNITS.values()) if groups[f"u{index}"] is not None)
        power = groups["exponent"] or groups["raised"] or groups["inexponent"] or groups["inraised"]
        power = {"²": "2", "³": "3"}.get(power or "", power)
        area = {"s": "2", "c": "3"}.get((groups["area"] or " ")[0].lower())
        return match["before"].strip(), "" if name == "unit" else name + (area or power or "")
    if (match := _IN_BRACES.fullmatch(content)) and _is_plain(match["before"]):
        return match["before"].strip(), match["letter"] or "th"
    if (match := _WORDS_AT_END.fullmatch(content)) and _is_plain(match["before"]):
        said = (match["text"] or match["bare"] or "").strip()
        if re.match(r"(?i)(?:and|or|at (?:least|most))\b|percent|pct", said) or (
            match["text"] is not None and len(said) == 1
        ):
            return content, None
        return match["before"].strip(), ""
    return content, None


def _may_have_unit(before: str, *, braced: bool) -> bool:
    r"""Whether a unit can stand behind a formula: one in `\text{}` behind any, one in letters behind a number alone."""
    if _OPEN.search(before):
        return False
    return braced or (re.search(r"(?:[\d}\])°]|\\pi)\Z", before) is not None and _is_plain(before))


def _is_plain(before: str) -> bool:
    """Whether a formula is complete and has no variables."""
    bare = re.sub(r"\\[a-zA-Z]+", "", _TEXT_BOX.sub("", before))
    return not _OPEN.search(before) and not re.search(r"[^\W\d_]", re.sub(r"\A.*=", "", bare, flags=re.DOTALL))


def split_label(content: str) -> tuple[str, str] | None:
    r"""The letter of a choice and the choice itself, as in `\textbf{(B)}\ 5` and `B. 5`; None for all else."""
    match = _LABEL_IN_TEXT.match(content) or _LABEL.match(content)
    if match is None:
        return None
    rest = f"{match.groupdict().get('inside') or ''} {content[match.end() :]}"
    rest = re.sub(r"\A(?:\s|\\[,;: ]|~|\\q?quad\b)+", "", rest).strip()
    if not rest or _OTHER_LABEL.search(rest):
        return None
    return match["a"] or match["b"], rest


def time_of_day(content: str) -> tuple[str, ...] | None:
    """The parts of a time such as `2:30`, which is no ratio; None for all else."""
    match = _TIME.fullmatch(content.strip())
    return None if match is None else match.groups(default="")


def open_ended(content: str) -> tuple[bool, bool]:
    r"""Whether an answer begins with a relation, as `\geq 5`, and whether dots continue it, as in `1, 2, \ldots`."""
    return _RELATION.match(content) is not None, _DOTS.search(content) is not None


def has_both_cases(content: str) -> bool:
    """Whether a formula uses a letter as a variable in both cases, as R and r."""
    letters = set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", _TEXT_BOX.sub(" ", content))))
    return any(letter.lower() in letters for letter in letters if letter.isupper())


def has_base(content: str) -> bool:
    """Whether a number with its base, such as `11_2`, is in the answer."""
    return any(_base(match) for match in _BASE.finditer(content))


def bases_as_symbols(content: str) -> str:
    """An answer in which each number with a base is a symbol of its own: `11_2` and `11_{2}` are the same one."""

    def symbol(match: re.Match[str]) -> str:
        digits, base = _digits(match), _base(match)
        if base == 10:
            return digits
        return match.group() if base is None else f"b_{{{base}{_letters(digits)}}}"

    return _BASE.sub(symbol, content)


def bases_left_off(content: str) -> str:
    """An answer in which digits with a base stand without it."""
    return _BASE.sub(lambda match: _digits(match) if _base(match) else match.group(), content)


def bases_as_values(content: str) -> str:
    """An answer in which each whole number with a base is written in base ten."""

    def value(match: re.Match[str]) -> str:
        base = _base(match)
        try:
            return match.group() if base is None else str(int(_digits(match), base))
        except ValueError:  # a digit that the base doesn't have, a point
            return f"b_{{{base}{_letters(_digits(match))}}}"

    return _BASE.sub(value, content)


def ways_to_read(content: str) -> tuple[str, ...]:
    r"""An answer in which `3e-05` is `3 \times 10^{-5}`. `2e-1` may also be twice Euler's number less one."""

    def written_out(match: re.Match[str]) -> str:
        return rf"{match[1]} \times 10^{{{int(match[2])}}}"

    def clear(match: re.Match[str]) -> str:
        return match.group() if _EULER.fullmatch(match.group()) else written_out(match)

    return tuple(dict.fromkeys((_SCIENTIFIC.sub(clear, content), _SCIENTIFIC.sub(written_out, content))))


def split_percent(content: str) -> tuple[str, bool]:
    """An answer without the sign of percent at its end, and whether it has one."""
    number = re.sub(r"\\?%\s*\Z", "", content)
    return number, number != content


def mixed_numbers(content: str) -> str:
    r"""An answer in which `3 1/2` is `3\frac{1}{2}`."""
    return _MIXED.sub(r"\1\\frac{\2}{\3}", content)


def elements_as_words(content: str) -> str:
    r"""A list, set or tuple in which each element of two letters or more is one word, not a product of letters."""

    def word(match: re.Match[str]) -> str:
        space, said = (match[1], match[2]) if match[2] else (match[3], match[4])
        return match.group() if _FUNCTION.fullmatch(said) else f"{space}\\text{{{said}}}"

    return _LETTER_ELEMENT.sub(word, content)


def is_set(content: str) -> bool:
    r"""Whether an answer is in the braces of a set, `\{1, 2\}`; a name before it doesn't count."""
    bare = re.sub(
        r"\A.*?(?:=|\\in\b)", "", content.replace("\\left", "").replace("\\right", ""), flags=re.DOTALL
    ).strip()
    return bare.startswith(("\\{", "\\lbrace")) and bare.endswith(("\\}", "\\rbrace"))


def _base(match: re.Match[str]) -> int | None:
    said = re.sub(r"\\[a-z]+|\bbase\b|[\s(){}]", "", match["base"] or match["digit"] or match["said"])
    base = int(said) if re.fullmatch(r"[0-9]{1,2}", said) else _BASE_WORDS.get(said, 0)
    return base if 2 <= base <= 36 else None


def _digits(match: re.Match[str]) -> str:
    return (match["digits"] or match["plain"]).strip("() ").upper()


def _letters(digits: str) -> str:
    """Digits as an index that can't be taken for a number: `11.01` is `x11p01`."""
    return "x" + digits.replace(".", "p")
