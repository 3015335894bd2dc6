"""`toolrl areal convert`: what comes of the config of AReaL's TIR example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.cli.main import main
from toolrl.config.load import check_config, load_config
from toolrl.errors import ConfigError
from toolrl.plugins.registry import load_registry
from toolrl_common.conversion import Conversion, Reading
from toolrl_plugin_areal.convert.command import ArealConvert
from toolrl_plugin_areal.convert.mapping import convert
from toolrl_plugin_areal.convert.settings import DEFAULTS, ArealConversion

GUIDE = """
experiment_name: tir-math-reasoning
trial_name: trial0
allocation_mode: sglang:d4p1t1+d4p1t1
cluster: {fileroot: /data/areal, n_nodes: 1}
seed: 1
total_train_epochs: 3
tokenizer_path: ${actor.path}
rollout: {max_concurrent_rollouts: 128, consumer_batch_size: "${train_dataset.batch_size}", max_head_offpolicyness: 2}
gconfig: {n_samples: 4, min_new_tokens: 0, max_new_tokens: 512, greedy: false, temperature: 1.0}
actor:
  path: ./model
  gradient_checkpointing: true
  dtype: bfloat16
  mb_spec: {max_tokens_per_mb: 10240}
  optimizer: {type: adam, lr: 1.70e-5, weight_decay: 0.017, lr_scheduler_type: constant, gradient_clipping: 1.0,
              warmup_steps_proportion: 0.2}
  eps_clip: 0.4
  reward_scaling: 10.0
  reward_bias: -0.5
  kl_ctl: 0.0
  ppo_n_minibatches: 1
  use_decoupled_loss: true
  behav_imp_weight_cap: 5.0
  reward_norm: {mean_level: group, std_level: group, group_size: "${gconfig.n_samples}"}
  adv_norm: {mean_level: batch, std_level: batch}
ref: {path: "${actor.path}"}
sglang: {model_path: "${actor.path}", context_length: 4096}
tir: {max_turns: 2, max_length: 3000, tool_timeout: 40, enable_tools: python;calculator}
train_dataset: {batch_size: 4, shuffle: true, path: train.jsonl, max_length: 500}
valid_dataset: {batch_size: 4, path: train.jsonl}
saver: {freq_epochs: 2, freq_steps: null, freq_secs: null}
evaluator: {freq_epochs: 1, freq_steps: null}
stats_logger: {wandb: {mode: disabled}}
"""


def write_guide(folder: Path) -> None:
    (folder / "tir_config.yaml").write_text(GUIDE)
    row = {"messages": [{"role": "user", "content": "What is 15 + 27?"}], "answer": "42"}
    (folder / "train.jsonl").write_text(f"{json.dumps(row)}\n" * 10)


def converted(tree: dict[str, Any]) -> tuple[dict[str, Any], Conversion]:
    return convert(ArealConversion(Reading(Path(), tree)))


def needs_tools() -> None:
    there = {found.component.name for kind in ("tools", "engines") for found in load_registry().components(kind)}
    missing = {"python", "calculator", "transformers"} - there
    if missing:
        pytest.skip(f"not installed: {', '.join(sorted(missing))} (pip install toolrl-plugin-NAME)")


def test_the_guides_config_gives_one_that_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_tools()
    monkeypatch.chdir(tmp_path)
    write_guide(tmp_path)
    assert main(["areal", "convert", "tir_config.yaml", "--out", "tir.yaml"]) == 0
    said = capsys.readouterr().out
    assert "Not carried over:" in said
    assert main(["config", "check", "tir.yaml"]) == 0
    config = load_config("tir.yaml").config
    environment = config.environments["default"]
    assert (environment.parser.use, environment.chat_format.use) == ("areal_tir", "torl")
    assert [tool.use for tool in environment.tools] == ["python", "calculator"]
    assert environment.tools[0].options["timeout"] == 40
    assert environment.tools[0].options["cpu_seconds"] == 40
    assert environment.tools[1].policy == {"timeout": 40.0}
    assert (environment.max_turns, environment.end_flags) == (3, ["boxed"])
    assert environment.rewards[0].options == {"scaling": 10.0, "bias": -0.5}
    assert (config.rollout.max_turn_tokens, config.rollout.max_episode_tokens) == (512, 3000)
    assert config.rollout.concurrency == 128
    assert config.rollout.max_staleness == 2
    algorithm, trainer = config.algorithm, config.trainer
    importance = algorithm.importance
    assert importance is not None
    assert (importance.level, importance.mode, importance.cap) == ("token", "reject", 5.0)
    assert (algorithm.group_size, algorithm.scale, algorithm.loss_aggregation) == (4, "std", "token_mean")
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.kl_coef) == (0.4, 0.4, 0.0)
    # Ten rows are two batches of four; three times.
    assert (trainer.steps, trainer.prompts_per_step, trainer.updates_per_step) == (6, 4, 1)
    assert (trainer.learning_rate, trainer.weight_decay, trainer.warmup_steps) == (1.7e-5, 0.017, 0.2)
    assert (trainer.betas, trainer.tokens_per_microbatch, trainer.save_every) == ((0.9, 0.999), 10240, 4)
    assert (config.evaluation.every, config.evaluation.temperature) == (2, 0.6)
    assert (config.run.name, config.seed, config.model.gradient_checkpointing) == ("tir-math-reasoning", 1, True)


def test_every_setting_is_carried_over_or_told() -> None:
    _, report = converted(yaml.safe_load(GUIDE.replace("seed: 1", "seed: 1\nsurprise: {new: 1}")))
    assert "surprise.new" in report.lost
    assert not set(report.lost) & {"tir.max_turns", "gconfig.n_samples", "actor.eps_clip", "seed"}


def test_what_is_left_out_means_areals_default() -> None:
    config, report = converted({})
    environment = config["environments"]["default"]
    assert [tool["use"] for tool in environment["tools"]] == ["python"]
    assert environment["rewards"] == [{"use": "areal_tir"}]
    assert environment["max_turns"] == DEFAULTS["tir.max_turns"] + 1
    assert (config["trainer"]["learning_rate"], config["trainer"]["updates_per_step"]) == (1e-3, 4)
    assert (config["algorithm"]["group_size"], "gconfig.n_samples" in report.lost) == (8, True)
    assert "kl_coef" not in config["algorithm"], "without a reference AReaL has no KL term"


def test_code_that_runs_in_a_sandbox_elsewhere_runs_here() -> None:
    sandbox = {"enabled": True, "backend": "e2b", "api_key": "", "timeout": 30.0}
    config, report = converted({"tir": {"enable_tools": "sandbox_python;calculator", "sandbox": sandbox}})
    assert [tool["use"] for tool in config["environments"]["default"]["tools"]] == ["python", "calculator"]
    assert "tir.sandbox.backend" in report.lost
    assert "tir.enable_tools" not in report.lost


def test_a_null_asks_for_nothing() -> None:
    config, report = converted({"ref": None, "vllm": None, "actor": {"c_clip": None}, "tir": {"enable_tools": None}})
    assert "kl_coef" not in config["algorithm"]
    assert not set(report.lost) & {"ref", "vllm", "actor.c_clip"}
    assert [tool["use"] for tool in config["environments"]["default"]["tools"]] == ["python", "calculator"]


def test_the_section_may_be_called_tir_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("tir_config: {max_turns: 4, enable_tools: calculator, is_chat_model: true}\n")
    config, report = ArealConvert().convert(str(tmp_path / "c.yaml"), [])
    environment = config["environments"]["default"]
    assert (environment["max_turns"], environment["chat_format"]) == (5, "tir")
    assert [tool["use"] for tool in environment["tools"]] == ["calculator"]
    assert not [key for key in report.lost if key.startswith("tir")]


@pytest.mark.parametrize(
    ("actor", "scale"),
    [
        ({"reward_norm": {"mean_level": "group", "std_level": "group"}}, "std"),
        ({"reward_norm": {"mean_level": "group", "std_level": None}}, "none"),
        ({"reward_norm": {"mean_level": "group", "std_level": "batch"}}, "batch_std"),
        ({"adv_norm": {"mean_level": "batch", "std_level": "batch"}}, "batch_std"),
        ({}, "none"),
    ],
)
def test_group_norms(actor: dict[str, Any], scale: str) -> None:
    assert converted({"actor": actor})[0]["algorithm"]["scale"] == scale


def test_baseline_ratio_and_dual_clip() -> None:
    actor = {"reward_norm": {"mean_level": "batch", "std_level": "batch"}, "c_clip": 3.0,
             "importance_sampling_level": "sequence"}  # fmt: skip
    config, report = converted({"actor": actor, "gconfig": {"n_samples": 1}})
    algorithm = config["algorithm"]
    assert (algorithm["baseline"], algorithm["scale"], algorithm["group_size"]) == ("batch_mean", "batch_std", 1)
    assert (algorithm["clip_dual"], algorithm["ratio"]) == (3.0, "sequence")
    assert not {key for key in report.lost if key.startswith(("actor.c_clip", "actor.reward_norm", "gconfig"))}
    config, report = converted({"actor": {"reward_norm": {"mean_level": "batch", "std_level": "group"}}})
    assert (config["algorithm"]["baseline"], config["algorithm"]["scale"]) == ("batch_mean", "batch_std")
    assert "actor.reward_norm.std_level" in report.lost
    assert "actor.importance_sampling_level" in converted({"actor": {"importance_sampling_level": "odd"}})[1].lost


def test_the_decoupled_loss_weighs_samples() -> None:
    config, report = converted({"actor": {"use_decoupled_loss": True, "behave_imp_weight_cap": 3.0}})
    assert config["algorithm"]["importance"] == {"level": "token", "mode": "reject", "cap": 3.0}
    assert not [key for key in report.lost if key.startswith(("actor.use_dec", "actor.behav"))]
    assert "importance" not in converted({"actor": {"use_decoupled_loss": False}})[0]["algorithm"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"metric": "ratio", "upper": 3.0}, {"importance": {"level": "token", "mode": "reject", "cap": 3.0}}),
        ({"action": "clamp", "upper": 2.0}, {"importance": {"level": "token", "mode": "truncate", "cap": 2.0}}),
        ({"level": "sequence", "upper": 2.0}, {"importance": {"level": "mean", "mode": "reject", "cap": 2.0}}),
        (
            {"level": "sequence", "agg": "sum", "upper": 4.0, "lower": 0.5},
            {"importance": {"level": "sequence", "mode": "reject", "cap": 4.0},
             "rejection": {"level": "sequence", "low": 0.5, "high": 4.0}},
        ),
    ],
)  # fmt: skip
def test_rejection_sampling_bounds_the_weights(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    config, report = converted({"actor": {"use_decoupled_loss": True, "rejection_sampling": given}})
    found = {key: config["algorithm"][key] for key in ("importance", "rejection") if key in config["algorithm"]}
    assert found == wanted
    assert not [key for key in report.lost if key.startswith("actor.rej")]
    assert not report.remarks or not any("cap" in remark for remark in report.remarks)


def test_a_rejection_without_an_equal_is_told_first() -> None:
    for rejection, key in (({"metric": "kl_k3", "upper": 0.5}, "metric"), ({"level": "sequence", "agg": "max"}, "agg")):
        _, report = converted({"actor": {"use_decoupled_loss": True, "rejection_sampling": rejection}})
        assert f"actor.rejection_sampling.{key}" in report.learned


def test_ratios_are_taken_to_what_areal_takes_them_to() -> None:
    for actor, old in (({}, "sampled"), ({"recompute_logprob": True}, None), ({"use_decoupled_loss": True}, None)):
        assert converted({"actor": actor})[0]["algorithm"].get("old_logprobs") == old


@pytest.mark.parametrize(
    ("tree", "wanted"),
    [
        ({"actor": {"use_cispo_loss": True, "eps_clip_higher": 4.0}}, {"surrogate": "cispo", "clip_high": 4.0}),
        ({"actor": {"dynamic_sampling": True}}, {"drop_flat_groups": True, "filter_metric": "reward"}),
        ({"actor": {"mask_no_eos_with_zero": True}}, {"mask_truncated": True}),
        # The penalty is scaled with the reward.
        (
            {"actor": {"overlong_reward_penalty": True, "overlong_tokens": 512, "overlong_penalty_factor": 0.5,
                       "reward_scaling": 10.0, "max_new_tokens": 4096}},
            {"overlong": {"tokens": 4096, "buffer": 512, "penalty": 5.0}},
        ),
        ({"actor": {"overlong_reward_penalty": False, "overlong_tokens": 512}}, {"overlong": None}),
        ({"actor": {"kl_ctl": 0.01}, "ref": {"path": "x"}}, {"kl_coef": 0.01, "kl_in": "reward"}),
        (
            {"actor": {"reward_norm": {"mean_level": "group", "mean_leave1out": True, "std_level": None}}},
            {"baseline": "leave_one_out", "scale": "none"},
        ),
        (
            {"actor": {"reward_norm": {"mean_level": "group", "std_level": None},
                       "adv_norm": {"mean_level": "batch", "std_level": "batch"}}},
            {"scale": "advantage_std"},
        ),
        (
            {"actor": {"adv_norm": {"mean_level": "batch", "std_level": "batch"}, "gae_lambda": 0.9},
             "critic": {"path": "x", "eps_clip": 0.3, "optimizer": {"lr": 2e-5}}, "gconfig": {"n_samples": 1}},
            {"preset": "ppo", "group_size": 1, "scale": "advantage_std", "discount": 1.0,
             "critic": {"level": "token", "learning_rate": 2e-5, "gae_lambda": 0.9, "value_clip": 0.3}},
        ),
        (
            {"teacher": {"path": "big", "rl_loss_weight": 1.0, "distill_loss_weight": 0.01}},
            {"distillation": {"teachers": {"default": {"model": "big"}}, "coef": 0.01, "kl_as": "loss",
                              "reward_weight": 1.0}},
        ),
    ],
)  # fmt: skip
def test_the_objective_is_carried_over(tree: dict[str, Any], wanted: dict[str, Any]) -> None:
    tree = {"gconfig": {"n_samples": 4}, **tree}
    config, report = converted(tree)
    assert {key: config["algorithm"].get(key) for key in wanted} == wanted
    # A config that names no norm has no baseline, and toolrl has one.
    assert set(report.learned) <= {"actor.adv_norm.mean_level"}
    assert not [line for line in problems_of(config) if ": there is no " not in line]


def problems_of(config: dict[str, Any]) -> list[str]:
    try:
        check_config(config)
    except ConfigError as error:
        return error.problems
    return []


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"train_dataset": {"type": "dpo"}}, r"train_dataset\.type: .*\(DPO\)"),
        ({"actor": {"beta": 0.1}}, r"actor\.beta: .*\(DPO\)"),
        ({"actor": {"is_critic": True}, "train_dataset": {"type": "rw"}}, r"actor\.is_critic: .*reward model"),
        ({"train_dataset": {"type": "rw"}}, r"train_dataset\.type: .*reward model"),
        ({"train_dataset": {"type": "sft"}}, r"train_dataset\.type: .*sft"),
        ({"actor": {"use_sapo_loss": True}}, r"actor\.use_sapo_loss"),
        ({"actor": {"m2_threshold": 0.04}}, r"actor\.m2_threshold"),
    ],
)
def test_what_trains_something_else_is_refused(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        converted(tree)


def test_a_config_without_tools_gives_one_without() -> None:
    tree: dict[str, Any] = {
        "train_dataset": {"path": "openai/gsm8k", "type": "rl"},
        "gconfig": {"n_samples": 4, "max_new_tokens": 900},
    }
    tree["actor"] = {"reward_norm": {"mean_level": "group", "std_level": "group"}}
    config, report = converted(tree)
    environment = config["environments"]["default"]
    assert ("tools" in environment, environment["chat_format"], environment["max_turns"]) == (False, "template", 1)
    assert config["rollout"] == {"max_turn_tokens": 900, "temperature": 1.0}
    assert report.learned == ["workflow"]
    assert any("huggingface" in remark for remark in report.remarks)
    config, report = converted({**tree, "tir": {"max_turns": 3}})
    assert (config["environments"]["default"]["max_turns"], report.learned) == (4, [])


def test_lora_is_carried_over() -> None:
    actor = {"use_lora": True, "lora_rank": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "peft_type": "lora"}
    config, _ = converted({"actor": actor})
    assert config["model"]["lora"] == {"rank": 8, "alpha": 16.0, "target_modules": ["q_proj"]}


def test_what_changes_learning_is_told_first() -> None:
    actor = {"reward_norm": {"mean_level": "group", "std_level": "group"}, "adv_norm": {"std_level": "batch"},
             "kl_estimator": "k2", "kl_ctl": 0.1, "prox_logp_method": "loglinear", "disable_dropout": True,
             "temperature": 0.5}  # fmt: skip
    tree = {"actor": actor, "gconfig": {"n_samples": 4, "greedy": True}, "ref": {"path": "x"}, "dynamic_bs": True}
    _, report = converted({**tree, "sglang": {"dtype": "bfloat16"}, "cluster": {"n_nodes": 2}, "surprise": 1})
    keys = {
        "actor.adv_norm",
        "actor.kl_estimator",
        "actor.prox_logp_method",
        "gconfig.greedy",
        "dynamic_bs",
        "actor.temperature",
    }
    keys.add("surprise")  # What nobody knows may change anything.
    assert set(report.learned) == keys


def test_sampling_goes_on_while_the_model_is_trained() -> None:
    rollout = {"max_head_offpolicyness": 4}
    assert converted({"rollout": rollout})[0]["rollout"]["max_staleness"] == 4
    for tree in ({}, {"rollout": {"max_head_offpolicyness": 0}}, {"rollout": rollout, "async_training": False}):
        assert "max_staleness" not in converted(tree)[0]["rollout"]


def test_what_cannot_be_is_told() -> None:
    config, report = converted(
        {
            "gconfig": {"n_samples": "many", "temperature": -1},
            "actor": {"eps_clip": 3, "dtype": "float16", "optimizer": {"type": "sgd"}, "kl_ctl": 0.1},
            "ref": {"path": "x"},
            "tir": {"enable_tools": "python; search", "max_turns": True},
            "tokenizer_path": "elsewhere",
        }
    )
    keys = {"gconfig.temperature", "actor.eps_clip", "actor.dtype", "actor.optimizer.type", "tokenizer_path"}
    assert keys | {"tir.enable_tools", "tir.max_turns"} <= set(report.lost)
    assert (config["algorithm"]["clip_low"], config["algorithm"]["kl_coef"]) == (0.2, 0.1)


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/bash\nset -ex\nexport N=7 DIR=examples/tir\ncd /AReaL # 'here\n"
        'python3 $DIR/train_tir.py --config="${DIR}/tir_config.yaml" gconfig.n_samples=$N '
        "'experiment_name=a b' 2>&1 | tee x=y\n",
        "N=${M:-7}\nnohup python train_tir.py --config tir_config.yaml gconfig.n_samples=${N} > log.txt &\n",
    ],
)
def test_a_start_script_names_the_config(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "examples/tir"
    folder.mkdir(parents=True)
    write_guide(folder)
    (folder / "start.sh").write_text(script)
    monkeypatch.chdir(tmp_path)
    config, report = ArealConvert().convert("examples/tir/start.sh", ["actor.path=there"])
    assert config["algorithm"]["group_size"] == 7
    assert config["run"]["name"] == ("a-b" if "a b" in script else "tir-math-reasoning")
    assert (config["model"]["path"], config["rollout"]["max_staleness"]) == ("there", 2)
    assert not [key for key in report.lost if key.startswith("gconfig.n_")]


@pytest.mark.parametrize("script", ["echo hello", "python3 train_tir.py --config nowhere.yaml"])
def test_a_script_that_says_no_config(script: str, tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text(script)
    with pytest.raises(ConfigError, match="--config"):
        ArealConvert().convert(str(tmp_path / "start.sh"), [])


PLAIN = st.none() | st.booleans() | st.integers(-5, 10**9) | st.floats() | st.text(max_size=12) | st.just("${seed}")
KEYS = [key for key in DEFAULTS if key.count(".") == 1]


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), PLAIN | st.lists(PLAIN, max_size=2), max_size=8))
def test_no_value_breaks_it_and_numbers_are_within_bounds(values: dict[str, Any]) -> None:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        tree.setdefault(section, {})[name] = value
    config, _ = converted(tree)
    assert config["algorithm"]["group_size"] >= (1 if "baseline" in config["algorithm"] else 2)
    assert 0 <= config["algorithm"]["clip_low"] <= 1
    assert config["trainer"]["learning_rate"] > 0
    assert config["environments"]["default"]["tools"]
