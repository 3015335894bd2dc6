"""`toolrl verl convert`: what comes of verl's configs and start scripts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import verl_guides
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.cli.main import main
from toolrl.config.load import check_config, load_config
from toolrl.errors import ConfigError
from toolrl.plugins.registry import load_registry
from toolrl_common.conversion import Conversion, Reading
from toolrl_plugin_verl.convert.command import VerlConversion, VerlConvert
from toolrl_plugin_verl.convert.mapping import convert

GUIDES = sorted(verl_guides.TOOLS)


SHORT = {
    "MULTI": "actor_rollout_ref.rollout.multi_turn",
    "ROLLOUT": "actor_rollout_ref.rollout",
    "VALUES": "actor_rollout_ref.rollout.val_kwargs",
    "ACTOR": "actor_rollout_ref.actor",
    "MODEL": "actor_rollout_ref.model",
    "CORRECTION": "algorithm.rollout_correction",
    "FUNCTION": "custom_reward_function",
    "TEMPLATE": "data.apply_chat_template_kwargs",
    "ENV": "environments.default",
}
"""Beginnings of keys in the tables below."""


def full(text: str) -> str:
    return re.sub(rf"\b({'|'.join(SHORT)})\b", lambda match: SHORT[match[1]], text)


def converted(*overrides: str, tree: dict[str, Any] | None = None) -> tuple[dict[str, Any], Conversion]:
    """Of GRPO, unless an override or the tree says another estimator."""
    reading = Reading(Path())
    if tree is None:
        reading.override(("algorithm.adv_estimator=grpo", *map(full, overrides)))
    else:
        reading.tree = tree
    return convert(VerlConversion(reading))


def of_file(path: Path | str, *overrides: str) -> tuple[dict[str, Any], Conversion]:
    return VerlConvert().convert(str(path), overrides)


@pytest.mark.parametrize("name", GUIDES)
def test_each_guides_script_gives_a_config_that_checks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_parser()
    monkeypatch.chdir(tmp_path)
    verl_guides.write_guide(tmp_path, name)
    assert main(["verl", "convert", f"run_{name}.sh", "--out", f"{name}.yaml"]) == 0
    said = capsys.readouterr().out
    assert "install toolrl-plugin-wandb" in said
    assert main(["config", "check", f"{name}.yaml"]) == 0
    config = load_config(f"{name}.yaml").config
    environment = config.environments["default"]
    assert environment.tools[0].options["tool_config_path"] == f"./config/tool_config/{name}_tool_config.yaml"
    assert (environment.max_turns, environment.tools[0].weight) == (verl_guides.TURNS[name], 0.0)
    assert config.data.train is not None
    assert config.data.train.options == {"path": f"./{name}.jsonl"}
    assert config.model.path == "./model"
    assert config.run.name == name
    assert (config.rollout.max_turn_tokens, config.rollout.max_episode_tokens) == (64, 364)
    assert (config.algorithm.group_size, config.algorithm.kl_coef, config.algorithm.loss_aggregation) == (
        2,
        0.001,
        "token_mean",
    )
    trainer = config.trainer
    # Ten rows are two batches of four; fifteen times.
    assert (trainer.steps, trainer.prompts_per_step, trainer.updates_per_step, trainer.warmup_steps) == (30, 4, 2, 0.5)
    assert (trainer.weight_decay, trainer.betas) == (0.01, (0.9, 0.999))
    assert config.evaluation.every == 20
    assert [use.use for use in config.observers] == ["console", "verl_dump"]


def needs_parser() -> None:
    if not any(found.component.name == "hermes" for found in load_registry().components("parsers")):
        pytest.skip("the parser hermes isn't installed: pip install toolrl-plugin-qwen")


def test_a_config_that_needs_mending_is_written_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    (tmp_path / "verl.yaml").write_text("data: {train_files: '${oc.env:NO_SUCH_VARIABLE}/train.parquet'}\n")
    assert main(["verl", "convert", "verl.yaml"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "To be mended by hand" in said
    assert "the environment variable NO_SUCH_VARIABLE isn't set" in said
    assert "${NO_SUCH_VARIABLE}/train.parquet" in (tmp_path / "verl.toolrl.yaml").read_text()


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


@pytest.mark.parametrize(
    ("overrides", "where", "value"),
    [
        (["algorithm.norm_adv_by_std_in_grpo=False"], "algorithm.scale", "none"),
        (["ACTOR.loss_agg_mode=seq-mean-token-sum-norm"], "algorithm.loss_aggregation", "constant"),
        (["ACTOR.clip_ratio_high=0.28"], "algorithm.clip_high", 0.28),
        (["ACTOR.entropy_coeff=0.01"], "algorithm.entropy_coef", 0.01),
        (["ROLLOUT.top_k=50"], "rollout.top_k", 50),
        (["VALUES.temperature=0.6", "VALUES.top_p=0.6"], "evaluation", {"temperature": 0.6, "top_p": 0.6}),
        (["VALUES.top_k=50"], "evaluation", {"temperature": 0.0}),
        (["ACTOR.use_dynamic_bsz=True"], "trainer.tokens_per_microbatch", 16384),
        (["ACTOR.optim.warmup_style=cosine"], "trainer.schedule", "cosine"),
        (["ACTOR.optim.lr_warmup_steps_ratio=0.05"], "trainer.warmup_steps", 0.05),
        (["ACTOR.use_prefix_grouper=False"], "trainer.share_prefix", False),
        (["trainer.save_freq=10"], "trainer.save_every", 10),
        (["ACTOR.loss_agg_mode=seq-mean-token-mean"], "algorithm.loss_aggregation", "sequence_mean"),
        (["ACTOR.use_kl_loss=True"], "algorithm.kl_correction", False),
        (
            ["MODEL.lora_rank=8", "MODEL.target_modules=[q_proj,v_proj]"],
            "model.lora.target_modules",
            ["q_proj", "v_proj"],
        ),
        (["data.seed=3"], "seed", 3),
        (["MODEL.path=~/m"], "model.path", "${HOME}/m"),
        (["data.train_files=['a.parquet','b.parquet']"], "data.train.options.path", ["a.parquet", "b.parquet"]),
        (["data.train_files=a.parquet", "data.train_max_samples=9"], "data.train.options.limit", 9),
        (["data.train_files=a", "data.prompt_key=chat"], "data.train.options.prompt_key", "chat"),
        (["trainer.logger=[console,tensorboard]"], "observers.1", "tensorboard"),
        (["MULTI.format=qwen3_coder"], "ENV.parser", "qwen3_coder"),
        (["algorithm.use_kl_in_reward=True", "ACTOR.use_kl_loss=False"], "algorithm.kl_in", "reward"),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.1", "ACTOR.use_kl_loss=False"],
            "algorithm.kl_coef",
            0.1,
        ),
        (["MULTI.max_assistant_turns='5'"], "ENV.max_turns", 5),
        (["MULTI.enable=true"], "ENV.max_turns", 32),
        (["+TEMPLATE.enable_thinking=False"], "ENV.chat_format.options.template_kwargs.enable_thinking", False),
        (["MULTI=True"], "ENV.max_turns", 32),
        (
            ["+TEMPLATE={enable_thinking:false,n:[1,2]}"],
            "ENV.chat_format.options.template_kwargs",
            {"enable_thinking": False, "n": [1, 2]},
        ),
        (["MULTI.max_user_turns=3"], "ENV.max_turns", 4),
        (["MULTI.tool_config_path=t.yaml"], "ENV.tools.0.options.tool_config_path", "t.yaml"),
        (["ROLLOUT.tool_config=t.yaml"], "ENV.tools.0.options.tool_config_path", "t.yaml"),
        (["rollout.tool_config=t.yaml"], "ENV.tools.0.options.tool_config_path", "t.yaml"),
        (
            [
                "MULTI.tool_config_path=t",
                "MULTI.max_tool_response_length=1000",
                "MULTI.max_parallel_calls=3",
                "MULTI.tool_response_truncate_side=left",
            ],
            "ENV.tools.0.policy",
            {"max_output_tokens": 250, "truncate": "tail", "max_calls_per_turn": 3},
        ),
        (["MULTI.function_tool_path=f.py"], "ENV.tools.0.options.function_tool_path", "f.py"),
        (["FUNCTION.path=r.py"], "ENV.rewards.0.options.path", "r.py"),
        (["reward.FUNCTION.path=r.py", "reward.FUNCTION.name=f"], "ENV.rewards.0.options.name", "f"),
        (["FUNCTION.path=r.py", "+FUNCTION.reward_kwargs.k=2"], "ENV.rewards.0.options.reward_kwargs.k", 2),
        (
            ["reward_model.sandbox_fusion.url=http://s", "reward_model.sandbox_fusion.max_concurrent=8"],
            "ENV.rewards.0.options.sandbox_fusion",
            {"url": "http://s", "max_concurrent": 8},
        ),
    ],
)
def test_settings_are_carried_over(overrides: list[str], where: str, value: Any) -> None:
    config, report = converted(*overrides)
    node: Any = config
    for key in full(where).split("."):
        node = node[int(key) if isinstance(node, list) else key]
    assert node == value
    keys = [full(override).lstrip("+").partition("=")[0] for override in overrides]
    assert not [key for key in report.lost if key.startswith(tuple(keys))]


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.adv_estimator=remax", "ROLLOUT.n=1", "ROLLOUT.n=2.5", "reward_model.enable=True",
        "reward_model.reward_manager=prime_math", "ACTOR.policy_loss.loss_mode=kl_cov",
        "CORRECTION.rollout_is=geometric", "ACTOR.loss_agg_mode=token-sum", "MODEL.lora_adapter_path=a",
        "ROLLOUT.agent.default_agent_loop=mine", "MULTI.format=odd", "data.train_files=hdfs://x/y.parquet",
        "data.train_batch_size=many", "critic.optim.lr=1e-5", "something.new=1", "trainer.val_only=True",
        "data.seed=-1", "MULTI.max_assistant_turns=many", "ROLLOUT.tool_config.search.limit=3",
    ],
)  # fmt: skip
def test_what_is_lost_is_listed(override: str) -> None:
    assert full(override).partition("=")[0] in converted(override)[1].lost


KL = "ACTOR.use_kl_loss=True"
KL_TYPE = "ACTOR.kl_loss_type"


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["algorithm.adv_estimator=grpo"], {"preset": "grpo", "scale": "std", "clip_dual": 3.0, "critic": None}),
        (
            ["algorithm.adv_estimator=reinforce_plus_plus", "ROLLOUT.n=1"],
            {"preset": "reinforce_plus_plus", "group_size": 1},
        ),
        (
            ["algorithm.adv_estimator=gae", "ROLLOUT.n=1", "algorithm.gamma=0.99",
             "algorithm.lam=0.9", "critic.optim.lr=2e-5", "critic.cliprange_value=0.3", "trainer.critic_warmup=5"],
            {"preset": "ppo", "group_size": 1, "discount": 0.99,
             "critic": {"level": "token", "learning_rate": 2e-5, "gae_lambda": 0.9, "value_clip": 0.3,
                        "warmup_steps": 5}},
        ),
        (["ACTOR.loss_agg_mode=seq-mean-token-sum"], {"loss_aggregation": "sequence_sum"}),
        (
            ["ACTOR.policy_loss.loss_mode=gspo", "ACTOR.clip_ratio_high=4e-4"],
            {"ratio": "sequence", "clip_high": 4e-4, "clip_dual": None},
        ),
        (["ACTOR.policy_loss.loss_mode=cispo"], {"surrogate": "cispo", "clip_dual": None}),
        (["algorithm.adv_estimator=gdpo"], {"preset": "grpo", "advantage": "gdpo", "scale": None}),
        ([KL, f"{KL_TYPE}=k1+"], {"kl_estimator": "k1", "kl_correction": True}),
        ([KL, f"{KL_TYPE}=low_var_kl+"], {"kl_estimator": None, "kl_correction": True}),
        (
            ["CORRECTION.rollout_is=token", "CORRECTION.rollout_is_threshold=4"],
            {"importance": {"level": "token", "mode": "truncate", "cap": 4.0}},
        ),
        (
            ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=seq_reward",
             "algorithm.filter_groups.max_num_gen_batches=8"],
            {"dynamic_sampling": True, "drop_flat_groups": None, "filter_metric": "reward"},
        ),
        (
            ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc"],
            {"dynamic_sampling": True, "filter_metric": None},
        ),
    ],
)  # fmt: skip
def test_algorithms_are_carried_over(overrides: list[str], wanted: dict[str, Any]) -> None:
    overrides = ["ROLLOUT.n=4", *overrides]
    config, report = converted(*overrides)
    assert {key: config["algorithm"].get(key) for key in wanted} == wanted
    keys = {full(override).lstrip("+").partition("=")[0] for override in overrides}
    assert not keys & set(report.lost)
    assert not [line for line in problems_of(config) if ": there is no " not in line]


def test_a_config_without_an_estimator_means_verls_default() -> None:
    rollout = {"_target_": "verl.RolloutConfig", "name": "???"}
    config, report = converted(tree={"actor_rollout_ref": {"rollout": rollout}})
    assert (config["algorithm"]["preset"], config["algorithm"]["group_size"]) == ("ppo", 1)
    assert any("verl's default is gae" in remark for remark in report.remarks)
    assert not [key for key in report.lost if "_target_" in key], "what sets nothing is nothing to tell"
    assert not [remark for remark in report.remarks if "???" in remark]


def test_a_script_of_main_grpo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grpo.yaml").write_text("actor_rollout_ref: {rollout: {tool_config: tools.yaml, n: 4}}\n")
    (tmp_path / "run.sh").write_text("python -m verl.trainer.main_grpo --config grpo.yaml data.train_batch_size=6\n")
    config, report = of_file("run.sh")
    assert (config["algorithm"]["preset"], config["algorithm"]["group_size"]) == ("grpo", 4)
    assert config["trainer"]["prompts_per_step"] == 6
    assert config["environments"]["default"]["tools"][0]["options"]["tool_config_path"] == "tools.yaml"
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
    ],
)
def test_what_is_no_config_is_refused(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        of_file(tmp_path / name)


_KEYS = st.sampled_from(
    [
        "data.train_files", "data.train_batch_size", "data.max_prompt_length", "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.actor.optim.lr", "trainer.logger",
        "trainer.experiment_name", "actor_rollout_ref.rollout.multi_turn", "custom_reward_function.path",
        "actor_rollout_ref.rollout.temperature", "trainer.save_freq", "data", "algorithm.filter_groups.enable",
        "actor_rollout_ref.actor.clip_ratio_low", "actor_rollout_ref.rollout.top_p",
        "actor_rollout_ref.actor.grad_clip",
        "actor_rollout_ref.rollout.val_kwargs.temperature", "actor_rollout_ref.actor.kl_loss_coef",
    ]
)  # fmt: skip
_VALUES = st.sampled_from(
    ["", "null", "-1", "0", "0.5", "1e400", "nan", "True", "x", "[1,2]", "{a: 1}", "'", "${n}", "7"]
)


@settings(deadline=None)
@given(st.lists(st.tuples(_KEYS, _VALUES), max_size=6))
def test_odd_values_are_told_and_give_a_config_all_the_same(pairs: list[tuple[str, str]]) -> None:
    config, _ = converted(*(f"{key}={value}" for key, value in pairs))
    # Parsers and chat formats of other plugins may be missing here; every value has to fit.
    assert not [line for line in problems_of(config) if ": there is no " not in line]


def problems_of(config: dict[str, Any]) -> list[str]:
    try:
        check_config(config, environ={"n": "x"})
    except ConfigError as error:
        return error.problems
    return []


def test_files_that_are_named_are_looked_into(tmp_path: Path) -> None:
    tools, reward = tmp_path / "tools.yaml", tmp_path / "reward.py"
    classes = ("verl.tools.agentbay_tool.AgentBayTool", "my_tools.YourTool", "verl.tools.gsm8k_tool.Gsm8kTool")
    entries = [{"class_name": name, "config": {"type": "native", "key": "${oc.env:NO_SUCH_KEY}"}} for name in classes]
    tools.write_text(yaml.safe_dump({"tools": entries}))
    reward.write_text("import re\nfrom verl.utils.reward_score import gsm8k\nimport verl.protocol\n")
    multi = "actor_rollout_ref.rollout.multi_turn"
    _, report = converted(f"{multi}.tool_config_path={tools}", f"custom_reward_function.path={reward}")
    assert "install verl, or take the import out" in report.lost["verl.tools.agentbay_tool.AgentBayTool"]
    assert "Add the folder that it is in to the option `python_path`" in report.lost["my_tools.YourTool"]
    assert classes[2] not in report.lost
    assert [key for key in report.lost if key.startswith(str(reward))] == [f"{reward}: verl.protocol"]
    tools.write_text("tools: [{class_name: a.B, config: {type: odd}}]")
    _, report = converted(f"{multi}.tool_config_path={tools}", f"{multi}.function_tool_path={tmp_path}/none.py")
    assert "config.type is 'odd'" in report.lost["tool_config_path"]
    assert any("none.py isn't here" in remark for remark in report.remarks)
