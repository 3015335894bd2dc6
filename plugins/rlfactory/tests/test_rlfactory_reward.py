"""The reward `rlfactory`: SearchEnv's rules, and classes of users."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ConfigError, RewardError
from toolrl.types import Score
from toolrl_plugin_rlfactory.options import EnvRewardOptions
from toolrl_plugin_rlfactory.reward import RLFactoryReward
from toolrl_testing import make_build_context, make_episode, make_task

CALL = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'


def score(*turns: str, answer: Any = ("the Oslo",), **options: Any) -> Score:
    reward = RLFactoryReward(EnvRewardOptions(**options), make_build_context("rlfactory"))
    episode = make_episode(*turns, task=make_task(answer={"target": list(answer)}))
    return asyncio.run(reward.score(episode))


@pytest.mark.parametrize(
    ("turns", "value"),
    [
        (("<answer>Oslo!</answer>",), 1.05),
        ((CALL, "<answer>Oslo</answer>"), 1.05),
        ((CALL * 3, "<answer>Oslo</answer>"), 1.0),
        (("<answer>Bergen</answer>",), 0.1),
        (("<answer>Oslo</answer></answer>",), 0.95),
        (("<answer><answer>Oslo</answer></answer>",), -0.1),
        (("<think>x</think><answer> Oslo </answer><think>",), 1.05),
        (("Oslo",), -0.15),
        (("<think><answer>Oslo</answer></think>",), -0.05),
        ((CALL * 3, "Oslo"), -0.2),
    ],
)
def test_the_final_score_of_search(turns: tuple[str, ...], value: float) -> None:
    assert score(*turns).value == pytest.approx(value)


def test_without_form_it_is_the_exact_match() -> None:
    assert score("<answer>Oslo</answer>", format_score=0).value == 1.0
    assert score("Oslo", format_score=0).value == 0.0
    found = score("<answer>Bergen</answer>")
    assert found.metrics == {"correct": 0.0, "answered": 1.0}


def test_a_closing_tag_that_the_engine_cut_off() -> None:
    reward = RLFactoryReward(EnvRewardOptions(), make_build_context("rlfactory"))
    task = make_task(answer={"target": ["Oslo"]})
    cut = make_episode("So: <answer>Oslo", task=task, answer="Oslo", stop_reason="answer")
    assert asyncio.run(reward.score(cut)).value == pytest.approx(1.05)
    open_ = make_episode("So: <answer>Oslo", task=task)
    assert asyncio.run(reward.score(open_)).value == pytest.approx(-0.15)


def test_step_rewards_of_search() -> None:
    turns = (CALL, f"<tool_call>{{{CALL}", f"{CALL}<tool_call>", "x</tool_call>", "<answer>Oslo</answer>")
    assert score(*turns).per_turn == {}
    given = score(*turns, step_rewards=True).per_turn
    assert given == pytest.approx({0: 0.1, 1: -0.05, 2: 0.1, 3: -0.1})
    assert score(CALL, step_rewards=True, factor=0.5).per_turn == {0: 0.5}
    thought = f"<think>{CALL}</think>so"
    assert score(thought, step_rewards=True).per_turn == {}
    assert score(thought, step_rewards=True, config={"whole_text": True}).per_turn == pytest.approx({0: 0.1})


def test_what_tools_said_counts_only_where_it_is_asked_for() -> None:
    episode = make_episode("I don't know.", task=make_task(answer="4"))
    reward = RLFactoryReward(EnvRewardOptions(), make_build_context("rlfactory"))
    assert asyncio.run(reward.score(episode)).metrics["answered"] == 0.0

    class Tokenizer:
        def decode(self, ids: Any, **_: Any) -> str:
            return "tool: <answer>4</answer>"

    context = make_build_context("rlfactory", tokenizer=Tokenizer())
    reward = RLFactoryReward(EnvRewardOptions(solution="response"), context)
    assert asyncio.run(reward.score(episode)).value == pytest.approx(1.05)
    with pytest.raises(ConfigError, match="tokenizer"):
        RLFactoryReward(EnvRewardOptions(solution="response"), make_build_context("rlfactory"))


ENV = """
import torch
from toolrl_plugin_rlfactory.envs import DataProto, Env

class Mine(Env):
    def __init__(self, config, centralized_actor=None):
        super().__init__(config, centralized_actor)
        self.use_verify_tool = True

    def verify_tool(self, data_source, solution_str, ground_truth, extra_info):
        return data_source

    def get_step_reward(self, responses, format_score=0.1):
        return [torch.nan if "answer" in text else torch.tensor(0.25) for text in responses]

    def compute_score(self, reward_rollout_wg, reward_tokenizer, tokenizer, data: DataProto, if_val=False,
                      use_process_reward=False):
        item = data[0]
        truth = item.non_tensor_batch["reward_model"]["ground_truth"]
        length = item.batch["responses"].shape[-1]
        assert item.batch["attention_mask"][item.batch["prompts"].shape[-1]:].sum() == length
        return [[float(truth["verified_results"] == "nq"), float(length)]]
"""


def test_an_env_with_tensors_and_a_verifying_tool(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "env_with_tensors.py").write_text(ENV)
    options = EnvRewardOptions(env=f"{tmp_path}/env_with_tensors.py:Mine", step_rewards=True)
    reward = RLFactoryReward(options, make_build_context("rlfactory"))
    task = make_task(answer="x", extra={"data_source": "nq"})
    episode = make_episode("a turn", "answer", task=task)
    found = asyncio.run(reward.score(episode))
    assert found.value == 1.0 + len(episode.ids) - episode.prompt_length
    assert found.per_turn == {0: 0.25}
    assert "correct" not in found.metrics


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    def compute_score(self, data):\n        return 'no'\n", "expected a list of scores"),
        ("    def get_step_reward(self, responses):\n        return []\n", "gave 0 values for 1"),
    ],
)
def test_an_env_that_gives_no_score(tmp_path: Path, body: str, says: str) -> None:
    file = tmp_path / "env_without_score.py"
    file.write_text(f"from toolrl_plugin_rlfactory.envs import Env\nclass Mine(Env):\n{body}")
    options = EnvRewardOptions(env=f"{file}:Mine", step_rewards=True)
    reward = RLFactoryReward(options, make_build_context("rlfactory"))
    with pytest.raises(RewardError, match=says):
        asyncio.run(reward.score(make_episode("x")))


def test_an_env_that_can_not_be_made(tmp_path: Path) -> None:
    file = tmp_path / "env_unmade.py"
    file.write_text("class Mine:\n    def __init__(self, config):\n        raise OSError('no disk')\n")
    with pytest.raises(ConfigError, match="no disk"):
        RLFactoryReward(EnvRewardOptions(env=f"{file}:Mine"), make_build_context("rlfactory"))


def test_an_env_that_asks_a_reward_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "env_with_judge.py"
    judge = "    def _compute_single_score_with_reward_rollout_wg(self, *about):\n        return 1.0\n"
    file.write_text(f"from toolrl_plugin_rlfactory.envs import Env\nclass Judged(Env):\n{judge}")
    with pytest.raises(ConfigError, match="Judged has a reward model score"):
        RLFactoryReward(EnvRewardOptions(env=f"{file}:Judged"), make_build_context("rlfactory"))
