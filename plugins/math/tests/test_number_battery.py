"""Rewards `math`, `gsm8k` and `exact` against verdicts decided by hand (`number_battery.py` and the others here)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import RewardError
from toolrl_plugin_math.math_reward import MathReward
from toolrl_plugin_math.options import Gsm8kRewardOptions, MathOptions
from toolrl_plugin_math.rewards import ExactReward, Gsm8kReward
from toolrl_testing import make_build_context, make_episode, make_task

sys.path.insert(0, str(Path(__file__).parent))
from number_battery import BAD, MATH, Row
from stated_battery import EXACT, GSM8K, GSM8K_FLEXIBLE
from written_battery import WRITTEN

CONTEXT = make_build_context()


@pytest.fixture(scope="module")
def math_reward() -> Iterator[MathReward]:
    made = MathReward(MathOptions(workers=1, timeout=30.0), CONTEXT)
    yield made
    made.close()


def verdict(reward: Any, gold: Any, text: str) -> Any:
    try:
        return asyncio.run(reward.score(make_episode(text, task=make_task(answer=gold)))).value == 1.0
    except RewardError as error:
        return BAD if "task-0" in str(error) else error


@pytest.mark.parametrize("row", [*MATH, *WRITTEN], ids=repr)
def test_math(math_reward: MathReward, row: Row) -> None:
    gold, text, expected, why = row
    assert verdict(math_reward, gold, text) == expected, why


@pytest.mark.parametrize("row", GSM8K, ids=repr)
def test_gsm8k(row: Row) -> None:
    gold, text, expected, why = row
    assert verdict(Gsm8kReward(None, CONTEXT), gold, text) == expected, why


@pytest.mark.parametrize("row", GSM8K_FLEXIBLE, ids=repr)
def test_gsm8k_flexible(row: Row) -> None:
    gold, text, expected, why = row
    reward = Gsm8kReward(Gsm8kRewardOptions(method="flexible"), CONTEXT)
    assert verdict(reward, gold, text) == expected, why


@pytest.mark.parametrize("row", EXACT, ids=repr)
def test_exact(row: Row) -> None:
    gold, text, expected, why = row
    assert verdict(ExactReward(None, CONTEXT), gold, text) == expected, why
