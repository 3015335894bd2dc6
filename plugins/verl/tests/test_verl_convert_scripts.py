"""`toolrl verl convert`: start scripts, and the YAML files that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion
from toolrl_plugin_verl.convert.command import VerlConvert


def of_file(path: Path | str, *overrides: str) -> tuple[dict[str, Any], Conversion]:
    return VerlConvert().convert(str(path), overrides)


def test_a_yaml_with_defaults_and_references(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("data: {train_batch_size: 8, max_prompt_length: 100}\nfoo: {bar: 1}\n")
    (tmp_path / "mine.yaml").write_text(
        "defaults: [ppo_trainer, base, _self_, nowhere]\n"
        "data: {train_batch_size: 16}\n"
        "actor_rollout_ref:\n"
        "  actor: {ppo_mini_batch_size: '${data.train_batch_size}', ppo_epochs: 2}\n"
        "  rollout: {n: 4, val_kwargs: {n: '${..n}', do_sample: true, temperature: 0.6}}\n"
        "trainer: {experiment_name: '${oc.env:USER}-${data.train_batch_size}', total_training_steps: 7}\n"
    )
    config, report = of_file(tmp_path / "mine.yaml", "data.shuffle=False", "+trainer.x={a: 1}")
    assert (config["trainer"]["prompts_per_step"], config["trainer"]["epochs_per_step"]) == (16, 2)
    assert "updates_per_step" not in config["trainer"]
    assert config["trainer"]["steps"] == 7
    assert config["rollout"]["max_episode_tokens"] == 612
    assert config["evaluation"] == {"episodes_per_task": 4, "temperature": 0.6}
    assert config["data"] == {"shuffle": False}
    assert config["run"]["name"] == "USER-16"
    assert {"foo.bar", "trainer.x.a"} <= set(report.lost)
    assert "--cfg job --resolve" in report.lost["defaults: nowhere"]


def test_a_script_of_main_grpo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grpo.yaml").write_text("actor_rollout_ref: {rollout: {tool_config: tools.yaml, n: 4}}\n")
    (tmp_path / "run.sh").write_text("python -m verl.trainer.main_grpo --config grpo.yaml data.train_batch_size=6\n")
    config, report = of_file("run.sh")
    assert (config["algorithm"]["preset"], config["algorithm"]["group_size"]) == ("grpo", 4)
    assert config["trainer"]["prompts_per_step"] == 6
    assert config["environments"]["default"]["tools"][0]["options"]["tool_config_path"] == "tools.yaml"
    assert not report.lost


def test_trainers_that_sample_while_they_train(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    words = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=16"
    script.write_text(
        f"python -m verl.experimental.fully_async_policy.fully_async_main {words} data.train_batch_size=0 "
        "rollout.total_rollout_steps=1280 async_training.staleness_threshold=1.5\n"
    )
    config, report = of_file(script)
    trainer = config["trainer"]
    assert (trainer["prompts_per_step"], trainer["updates_per_step"], trainer["steps"]) == (64, 4, 20)
    assert (config["rollout"]["max_staleness"], config["algorithm"]["old_logprobs"]) == (2, "sampled")
    assert not report.lost
    script.write_text(f"python -m verl.experimental.one_step_off_policy.main_ppo {words} data.train_batch_size=32\n")
    config, _ = of_file(script)
    assert (config["rollout"]["max_staleness"], config["trainer"]["prompts_per_step"]) == (1, 32)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer data.x=1", r"sft_trainer fine-tunes"),
        ("E='-m verl.trainer.sft_trainer'\ntorchrun $E data.x=1", r"sft_trainer fine-tunes"),
        ("python3 -m recipe.spin.main_spin data.x=1", r"main_spin trains on pairs of answers \(DPO\)"),
        ("python3 -m recipe.prime.main_prime data.x=1", r"main_prime trains a reward model"),
        ("python3 -m main_gkd --config-name x", r"main_gkd distills"),
        ("python3 -m recipe.spo.spo_main_ppo data.x=1", r"spo_main_ppo trains with a loss"),
        ("python3.11 servers/retrieval_agent.py data.x=1", r"retrieval_agent.py isn't a trainer of verl"),
        ("python tools/mine.py data.x=1", r"tools/mine.py isn't a trainer of verl"),
    ],
)
def test_a_script_that_trains_something_else_is_refused_by_name(command: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{command}\n")
    with pytest.raises(ConfigError, match=message):
        of_file(tmp_path / "run.sh")


def test_a_named_config_lies_beside_the_trainers_module(tmp_path: Path) -> None:
    folder, scripts = tmp_path / "verl/trainer/config", tmp_path / "examples/mine"
    (folder / "rollout").mkdir(parents=True)
    scripts.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "defaults: [ppo_trainer, rollout@actor_rollout_ref.rollout: mine, _self_]\ndata: {train_batch_size: 6}\n"
    )
    (folder / "rollout/mine.yaml").write_text("temperature: 0.7\nn: 2\n")
    (scripts / "run.sh").write_text(
        "python -m verl.trainer.main_ppo --config-name=mine actor_rollout_ref.rollout.n=4\n"
    )
    config, report = of_file(scripts / "run.sh")
    assert (config["trainer"]["prompts_per_step"], config["rollout"]["temperature"]) == (6, 0.7)
    assert config["algorithm"]["group_size"] == 4
    assert not report.lost


def test_what_a_script_leaves_open_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "A=1; A=2\n"
        "main_ppo data.train_batch_size=$A trainer.save_freq=$(nproc) trainer.experiment_name=x_$(date +%s) "
        "--config-name=mine\nmain_ppo b=1\n"
    )
    config, report = of_file(tmp_path / "run.sh")
    assert (config["trainer"]["prompts_per_step"], config["run"]["name"]) == (2, "x")
    assert "made by a command of the script" in report.lost["trainer.save_freq"]
    assert "there is no 'mine.yaml'" in report.lost["--config-name=mine"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.sh", "echo hi\n", "nothing calls main_ppo"),
        ("none.sh", None, "can't be read"),
        ("a.yaml", "[1]", "a config is a mapping"),
        ("sft.yaml", "model: {path: x}\noptim: {lr: 1e-5}\ndata: {train_files: y}\n", "SFT"),
    ],
)
def test_what_is_no_config_is_refused(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        of_file(tmp_path / name)
