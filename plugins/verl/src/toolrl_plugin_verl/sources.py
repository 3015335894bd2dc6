"""verl's table of data sources and the scorers that they get."""

from __future__ import annotations

from collections.abc import Mapping

_SOURCES: dict[str, str] = {
    "openai/gsm8k": "gsm8k",
    "lighteval/MATH": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "HuggingFaceH4/MATH-500": "math",
    "math_dapo": "math_dapo",
    "math": "math_dapo",
    "math_dapo_reasoning": "math_dapo",
    "hiyouga/geometry3k": "geo3k",
    "codecontests": "sandbox_fusion",
    "apps": "sandbox_fusion",
    "codeforces": "sandbox_fusion",
    "taco": "sandbox_fusion",
}
_PREFIXES = {"numina_": "math", "aime": "math_dapo", "searchR1_": "search_r1"}

KNOWN = (*_SOURCES, *(f"{prefix}…" for prefix in _PREFIXES))


def scorer_of(data_source: object, own: Mapping[str, str] | None = None) -> str | None:
    """A scorer's name, from the user's own table first, where `*` means all other sources; None where none fits."""
    name = data_source if isinstance(data_source, str) else ""
    by_prefix = [scorer for prefix, scorer in _PREFIXES.items() if name.startswith(prefix)]
    found = (own or {}).get(name) or (own or {}).get("*") or _SOURCES.get(name)
    return found or next(iter(by_prefix), None)
