"""Stand-in for verl's `default_compute_score`, for a compute_score of your own that falls back on it.

A plain function: what needs a server or worker processes is scored by the reward `verl` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolrl_common.user_classes import accepted
from toolrl_plugin_verl.utils.reward_score import geo3k, gsm8k, math_dapo, math_reward

SCORERS: dict[str, Callable[..., Any]] = {
    "gsm8k": gsm8k.compute_score,
    "math": math_reward.compute_score,
    "math_dapo": math_dapo.compute_score,
    "geo3k": geo3k.compute_score,
}

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
_PREFIXES = {"aime": "math_dapo", "searchR1_": "search_r1"}

KNOWN = (*_SOURCES, *(f"{prefix}…" for prefix in _PREFIXES))


def scorer_of(data_source: object, own: Mapping[str, str] | None = None) -> str | None:
    """A scorer's name, from the user's own table first, where `*` means all other sources; None where none fits."""
    name = data_source if isinstance(data_source, str) else ""
    by_prefix = [scorer for prefix, scorer in _PREFIXES.items() if name.startswith(prefix)]
    found = (own or {}).get(name) or (own or {}).get("*") or _SOURCES.get(name)
    return found or next(iter(by_prefix), None)


def score_as(scorer: str, solution_str: str, ground_truth: Any, **options: Any) -> Any:
    """The score of one of `SCORERS`, a number or a dict with `score`. Of the options it gets those that it takes."""
    found = SCORERS[scorer](solution_str, ground_truth, **accepted(SCORERS[scorer], options))
    return found if isinstance(found, dict) else float(found)


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> Any:
    """The score by the data source, a number or a dict with `score`. May block for some seconds. Raises
    NotImplementedError for a source that has no scorer here."""
    scorer = scorer_of(data_source)
    if scorer not in SCORERS:
        raise NotImplementedError(
            f"no score for data_source {data_source!r} as a plain function; the reward `verl` without `path` may have "
            "one"
        )
    return score_as(scorer, solution_str, ground_truth, **kwargs)
