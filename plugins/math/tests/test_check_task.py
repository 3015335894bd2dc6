"""Ground truths that the rewards can't compare with are told before a run, by the same words as when an episode is
scored."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import RewardError
from toolrl_plugin_math.math_reward import MathReward
from toolrl_plugin_math.options import ExactOptions, Gsm8kRewardOptions, MathOptions
from toolrl_plugin_math.rewards import ExactReward, Gsm8kReward
from toolrl_testing import make_build_context, make_episode, make_task

REWARDS: dict[str, tuple[Any, Any]] = {
    "exact": (ExactReward, ExactOptions),
    "gsm8k": (Gsm8kReward, Gsm8kRewardOptions),
    "math": (MathReward, MathOptions),
}
NOTHING = [None, "", " ", [], [None, ""], {}, {"answer": 3}, [[1], [2]], b"72", float("nan"), float("inf")]
NO_NUMBER = ["5 or 6", "yes", "A", "3:30", "#### ", "the sum"]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        *((name, answer) for name in REWARDS for answer in NOTHING),
        *(("gsm8k", answer) for answer in NO_NUMBER),
    ],
)
def test_what_cannot_be_scored_is_told(name: str, answer: Any) -> None:
    reward, options = REWARDS[name]
    task = make_task(answer=answer)
    with pytest.raises(RewardError) as before:
        options().check_task(task)
    with pytest.raises(RewardError) as scored:
        asyncio.run(reward(options(), make_build_context()).score(make_episode("1", task=task)))
    assert str(before.value) == str(scored.value)


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("answer", [72, "72", 72.0, ["72", None], "72 km", "48 + 24 = 72\n#### 72", "$1,234"])
def test_what_can_be_is_not(name: str, answer: Any) -> None:
    REWARDS[name][1]().check_task(make_task(answer=answer))


def test_config_check_names_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("toolrl_plugin_qwen", reason="the parser")
    pytest.importorskip("toolrl_plugin_torch", reason="the trainer")
    from toolrl.cli.main import main

    answers = ["7", "5 or 6", None, "8"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": "?", "answer": it}) + "\n" for it in answers))
    (tmp_path / "run.yaml").write_text(
        "model: {path: tiny}\nenvironments: {default: {parser: hermes, rewards: [gsm8k]}}\n"
        f"data: {{train: {{use: jsonl, options: {{path: {tmp_path / 'rows.jsonl'}}}}}}}\n"
    )
    assert main(["config", "check", str(tmp_path / "run.yaml"), "--data"]) == 1
    said = capsys.readouterr().err
    assert "data.train: 2 of 4 rows are bad" in said
    for line in (2, 3):
        assert f"rows.jsonl:{line}: the reward 'gsm8k' can't score it" in said
    assert main(["config", "check", str(tmp_path / "run.yaml"), "--data", "--set", "data.bad_rows=skip"]) == 0
