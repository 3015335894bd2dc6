r"""Rewrites mathematics as people type it, in Unicode and in words, as the LaTeX that math-verify reads.

`½`, `2√3`, `x²`, `5 million`, `1 000 000`, `x**2`, `2*pi`: math-verify passes over such characters or takes letters for
factors, so a ground truth that holds them would equal no answer in LaTeX. Everything here is linear in the text's
length.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Powers of ten that are written as words."""

_COMMANDS = {
    "×": r"\times", "⋅": r"\cdot", "·": r"\cdot", "÷": r"\div", "±": r"\pm", "∞": r"\infty", "∅": r"\emptyset",
    "≤": r"\le", "⩽": r"\le", "≥": r"\ge", "⩾": r"\ge", "≠": r"\ne", "≈": r"\approx", "∪": r"\cup", "∩": r"\cap",
    "∈": r"\in", "∠": r"\angle", "△": r"\triangle", "ℝ": r"\mathbb{R}", "ℕ": r"\mathbb{N}", "ℤ": r"\mathbb{Z}",
    "ℚ": r"\mathbb{Q}", "π": r"\pi", "θ": r"\theta", "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta",
    "λ": r"\lambda", "μ": r"\mu", "φ": r"\varphi", "ω": r"\omega",
}  # fmt: skip
_UNICODE = str.maketrans(
    {character: f"{command} " for character, command in _COMMANDS.items()}
    | {"−": "-", "\u00a0": " ", "\u2009": " ", "\u202f": " "}
)
_DASH = re.compile(r"(?:\A|(?<=[(\[{,=]))\s*[–—](?=\s*[\d.\\])")
_FRACTION = re.compile(r"[¼-¾⅐-⅞]")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_LOWERED = re.compile("[₀-₉]+")
_ROOT = re.compile(r"([√∛])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+(?:\.\d+)?|[A-Za-z]))")
_GROUPED = re.compile(r"(?<![\d.,_^\\])(\d{1,3}(?:(?:[ ~\u00a0\u2009\u202f]|\\[, ])\d{3}){1,10}+)(?!\d|,\d|\s?/)")
_SCALED = re.compile(
    r"(?:(?<![A-Za-z\d.,])(?P<number>\d{1,15}(?:,\d{3})*(?:\.\d{1,15})?)|(?P<formula>(?<=[\d}])))"
    r"(?P<end>\$)?(?:\s|\\[,;: ]|~|-)*(?P<text>\\(?:text|mathrm|mbox)\s*\{\s*)?"
    rf"\b(?P<scale>{'|'.join(SCALES)})s?\b",
    re.IGNORECASE,
)
_PERCENT = re.compile(
    r"(?:\s|\\[,;: ]|~){0,8}(?:\\(?:text|mathrm|mbox)\s*\{\s*(?:per ?cent|\\?%)\s*\}|\bper ?cent)\s*\.?\s*\Z",
    re.IGNORECASE,
)
_GOES_ON = re.compile(r"(\.\d+)(?:\.\.\.|…)\Z")
_POWER = re.compile(r"(?<=[\w)}])\*\*(?=[\w({\\-])")
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_FUNCTION = re.compile(r"(?<![A-Za-z\\])(sin|cos|tan|cot|sec|csc|log|ln|exp)(?=\s*\()")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)\b")
_DEGREES = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree\b|°)")


def as_latex(content: str) -> str:
    """A formula as LaTeX."""
    text = in_text(content).replace(r"\varnothing", r"\emptyset")
    text = _POWER.sub("^", _GOES_ON.sub(r"\1", text))
    text = _PERCENT.sub(lambda _: r"\%", text)
    text = _FUNCTION.sub(r"\\\1", _PI.sub(r"\\pi ", text))
    if _TRIGONOMETRIC.search(text):
        text = _DEGREES.sub(r"\\frac{\1 \\pi}{180}", text)
    return text


def in_text(text: str) -> str:
    """A text with words in which the characters of Unicode, grouped digits and scales (`5 million`) are rewritten."""
    text = without_scales(text)
    text = _GROUPED.sub(lambda match: re.sub(r"\D", "", match[1]), text)
    if text.isascii():
        return text
    text = _ROOT.sub(_root, _DASH.sub("-", text))
    text = _FRACTION.sub(_fraction, text)
    text = _RAISED.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match.group()).replace('−', '-')}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{unicodedata.normalize('NFKC', match.group())}}}", text)
    return text.translate(_UNICODE)


def without_scales(text: str) -> str:
    """A text with `5 million` as 5000000."""
    return _SCALED.sub(_scaled, text)


def _scaled(match: re.Match[str]) -> str:
    power = SCALES[match["scale"].lower()]
    if match["number"]:
        value = format(Decimal(match["number"].replace(",", "")).scaleb(power), "f")
        rewritten = value.rstrip("0").rstrip(".") if "." in value else value
    else:
        rewritten = rf" \times 10^{{{power}}}"
    return f"{rewritten}{match['end'] or ''}{match['text'] or ''}"


def _root(match: re.Match[str]) -> str:
    degree = "[3]" if match[1] == "∛" else ""
    return rf"\sqrt{degree}{{{match[2] or match[3] or match[4] or ''}}}"


def _fraction(match: re.Match[str]) -> str:
    over, _, under = unicodedata.normalize("NFKC", match.group()).partition("⁄")
    return rf"\frac{{{over}}}{{{under or '1'}}}"
