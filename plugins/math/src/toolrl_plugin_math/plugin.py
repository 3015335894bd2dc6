"""What the math plugin registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolrl import Component, hookimpl

if TYPE_CHECKING:
    from toolrl.protocols import Reward, TaskSource, Toolset

_PACKAGE = "toolrl_plugin_math"


@hookimpl
def toolrl_rewards() -> Iterator[Component[Reward]]:
    """Rewards `math`, `gsm8k` and `exact`."""
    yield Component(
        "math",
        f"{_PACKAGE}.math_reward:MathReward",
        summary="Mathematically the same as the answer, by math-verify.",
        options=f"{_PACKAGE}.options:MathOptions",
        check=f"{_PACKAGE}.math_reward:check",
    )
    yield Component(
        "gsm8k",
        f"{_PACKAGE}.rewards:Gsm8kReward",
        summary="The number after ####, or the last one, equals the answer.",
        options=f"{_PACKAGE}.options:Gsm8kRewardOptions",
    )
    yield Component(
        "exact",
        f"{_PACKAGE}.rewards:ExactReward",
        summary="The same text as the answer, but for white space and case.",
        options=f"{_PACKAGE}.options:ExactOptions",
    )


@hookimpl
def toolrl_tools() -> Iterator[Component[Toolset]]:
    """The tool `calc_gsm8k_reward`."""
    yield Component(
        "calc_gsm8k_reward",
        f"{_PACKAGE}.reward_tool:Gsm8kRewardTool",
        summary="Scores an answer to a GSM8K problem for the model.",
        options=f"{_PACKAGE}.options:RewardToolOptions",
    )


@hookimpl
def toolrl_datasets() -> Iterator[Component[TaskSource]]:
    """Data sets `gsm8k`, `arithmetic` and `arithmetic_demos`."""
    yield Component(
        "gsm8k",
        f"{_PACKAGE}.gsm8k:Gsm8k",
        summary="Grade-school problems from files of the public data set.",
        options=f"{_PACKAGE}.options:Gsm8kDataOptions",
    )
    yield Component(
        "arithmetic",
        f"{_PACKAGE}.arithmetic:Arithmetic",
        summary="Generated sums, products and word problems.",
        options=f"{_PACKAGE}.options:ArithmeticOptions",
    )
    yield Component(
        "arithmetic_demos",
        f"{_PACKAGE}.arithmetic:ArithmeticDemonstrations",
        summary="The same with an assistant's calls and answers, to fine-tune on.",
        options=f"{_PACKAGE}.options:DemonstrationOptions",
    )
