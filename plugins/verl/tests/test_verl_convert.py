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
from toolrl_plugin_verl.convert.command import VerlConversion
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
        "ROLLOUT.n=1", "ROLLOUT.n=2.5", "reward_model.enable=True",
        "reward_model.reward_manager=prime_math",
        "CORRECTION.rollout_is=geometric", "ACTOR.loss_agg_mode=token-sum", "MODEL.lora_adapter_path=a",
        "ROLLOUT.agent.default_agent_loop=mine", "MULTI.format=odd", "data.train_files=hdfs://x/y.parquet",
        "data.train_batch_size=many", "critic.optim.lr=1e-5", "something.new=1", "trainer.val_only=True",
        "ACTOR.optim.betas=[0.9,2]", "ACTOR.optim.betas=fast", "ACTOR.loss_agg_mode=[1]", "CORRECTION.rollout_rs=[1]",
        "data.seed=-1", "MULTI.max_assistant_turns=many", "ROLLOUT.tool_config.search.limit=3",
    ],
)  # fmt: skip
def test_what_is_lost_is_listed(override: str) -> None:
    assert full(override).partition("=")[0] in converted(override)[1].lost


DISTILL = "distillation.distillation_loss"
TEACHER = "distillation.teacher_models"


@pytest.mark.parametrize(
    ("overrides", "key", "hint"),
    [
        (["algorithm.adv_estimator=remax"], "algorithm.adv_estimator", "adv_estimator=grpo"),
        (["reward_model.model.beta_train=0.05"], "reward_model.model.beta_train", "main_ppo"),
        (["ACTOR.policy_loss.loss_mode=kl_cov"], "ACTOR.policy_loss.loss_mode", "loss_mode=vanilla"),
        (
            ["distillation.enabled=True", f"{DISTILL}.loss_mode=forward_kl_topk"],
            f"{DISTILL}.loss_mode",
            "enabled=False",
        ),
        (["distillation.enabled=True", f"{TEACHER}.a.model_path=a", f"{TEACHER}.b.model_path=b"], TEACHER, "by hand"),
    ],
)
def test_what_trains_something_else_is_refused(overrides: list[str], key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(full(key))}: ") as caught:
        converted(*overrides)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("overrides", "learned"),
    [
        (["ROLLOUT.n=1"], ["ROLLOUT.n"]),
        (["MULTI.interaction_config_path=i.yaml"], ["MULTI.interaction_config_path"]),
        (["ROLLOUT.agent.agent_loop_config_path=a.yaml"], ["ROLLOUT.agent.agent_loop_config_path"]),
        (["ROLLOUT.agent.default_agent_loop=mine"], ["ROLLOUT.agent.default_agent_loop"]),
        (["data.custom_cls.path=d.py", "data.custom_cls.name=Mine"], ["data.custom_cls.path"]),
        (["reward_model.enable=True"], ["reward_model.enable"]),
        (["reward_model.reward_manager=mine"], ["reward_model.reward_manager"]),
        (["ACTOR.optim.optimizer=muon"], ["ACTOR.optim.optimizer"]),
        (["ACTOR.something_new=0.3"], ["ACTOR.something_new"]),
        (["new_section.weight=0.3", "trainer.new=0.3", "ray_kwargs.new=1"], ["new_section.weight"]),
        (["ACTOR.fsdp_config.param_offload=True", "trainer.nnodes=2", "ROLLOUT.gpu_memory_utilization=0.5"], []),
        (["algorithm.use_pf_ppo=False", "algorithm.pf_ppo.weight_pow=2.0", "ACTOR.something_new=False"], []),
        (["critic.optim.lr=1e-5", "algorithm.lam=0.9", "algorithm.kl_ctrl.kl_coef=0.1"], []),
        (["CORRECTION.loss_type=ppo_clip", "ROLLOUT.do_sample=True", "MODEL.lora_alpha=32"], []),
    ],
)
def test_what_changes_learning_is_told_first(overrides: list[str], learned: list[str]) -> None:
    assert converted("ROLLOUT.n=4", *overrides)[1].learned == [full(key) for key in learned]


KL = "ACTOR.use_kl_loss=True"
KL_TYPE = "ACTOR.kl_loss_type"
OVERLONG = "reward_model.overlong_buffer"
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"


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
        (
            ["ACTOR.policy_loss.loss_mode=cispo", "ACTOR.clip_ratio_low=10"],
            {"surrogate": "cispo", "clip_low": 1.0, "clip_dual": None},
        ),
        (
            ["ACTOR.policy_loss.loss_mode=dppo_kl", "ACTOR.clip_ratio_low=0.05", "ACTOR.clip_ratio_c=20"],
            {"policy_loss": {"use": "dppo", "options": {"divergence": "kl", "clip_low": 0.05, "clip_high": 0.2,
                                                        "ratio_cap": 20.0}}, "clip_low": None},
        ),
        (
            ["reward_model.reward_manager=dapo", f"{OVERLONG}.enable=True", f"{OVERLONG}.len=100",
             f"{OVERLONG}.penalty_factor=0.5", f"{OVERLONG}.log=True", "data.max_response_length=1000"],
            {"overlong": {"tokens": 1000, "buffer": 100, "penalty": 0.5}},
        ),
        (
            ["reward.reward_manager.name=dapo", f"{BUFFER}.enable=True", f"{BUFFER}.len=100",
             "reward.reward_kwargs.max_resp_len=800"],
            {"overlong": {"tokens": 800, "buffer": 100, "penalty": 1.0}},
        ),
        (["reward_model.reward_manager=dapo", f"{OVERLONG}.enable=False", f"{OVERLONG}.len=100"], {"overlong": None}),
        (
            ["distillation.enabled=True", f"{DISTILL}.loss_mode=k1", f"{DISTILL}.use_policy_gradient=True",
             f"{DISTILL}.use_task_rewards=False", f"{DISTILL}.loss_max_clamp=10", f"{TEACHER}.t.model_path=big",
             "ROLLOUT.n=1"],
            {"distillation": {"teachers": {"default": {"model": "big"}}, "coef": 1.0, "kl_as": "advantage",
                              "reward_weight": 0.0, "clip": 10.0}, "group_size": 1},
        ),
        (["algorithm.adv_estimator=gdpo"], {"preset": "grpo", "advantage": "gdpo", "scale": None}),
        ([KL, f"{KL_TYPE}=k1+"], {"kl_estimator": "k1", "kl_correction": True}),
        ([KL, f"{KL_TYPE}=low_var_kl+"], {"kl_estimator": None, "kl_correction": True}),
        (
            ["CORRECTION.rollout_is=token", "CORRECTION.rollout_is_threshold=4"],
            {"importance": {"level": "token", "mode": "truncate", "cap": 4.0}},
        ),
        (
            ["CORRECTION.rollout_is=token", "CORRECTION.rollout_is_threshold=0.5_4.0"],
            {"importance": {"level": "token", "mode": "truncate", "cap": 4.0},
             "rejection": {"level": "token", "low": 0.5, "high": 4.0}},
        ),
        # verl bounds the rollout's probability over the policy's, toolrl the inverse.
        (
            ["CORRECTION.rollout_rs=seq_mean_k1", "CORRECTION.rollout_rs_threshold=0.8_2.0"],
            {"rejection": {"level": "mean", "low": 0.5, "high": 1.25}, "importance": None},
        ),
        (
            ["CORRECTION.rollout_rs=token_k1", "CORRECTION.rollout_rs_threshold=4", "CORRECTION.bypass_mode=True",
             "CORRECTION.rollout_is=token"],
            {"rejection": {"level": "token", "low": 0.25, "high": 4.0}, "old_logprobs": "sampled", "importance": None},
        ),
        (
            ["CORRECTION.rollout_rs=geometric", "CORRECTION.rollout_rs_threshold=1.01",
             "CORRECTION.rollout_rs_threshold_lower=0.99"],
            {"rejection": {"level": "mean", "low": 0.99, "high": 1.01}},
        ),
        (["ACTOR.use_rollout_log_probs=True"], {"old_logprobs": "sampled"}),
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
    assert not keys & set(report.learned)
    assert not [line for line in problems_of(config) if ": there is no " not in line]


def test_a_config_without_an_estimator_means_verls_default() -> None:
    rollout = {"_target_": "verl.RolloutConfig", "name": "???"}
    config, report = converted(tree={"actor_rollout_ref": {"rollout": rollout}})
    assert (config["algorithm"]["preset"], config["algorithm"]["group_size"]) == ("ppo", 1)
    assert any("verl's default is gae" in remark for remark in report.remarks)
    assert not [key for key in report.lost if "_target_" in key], "what sets nothing is nothing to tell"
    assert not [remark for remark in report.remarks if "???" in remark]


def test_the_penalty_for_length_is_that_of_one_reward_manager() -> None:
    config, report = converted("ROLLOUT.n=4", f"{OVERLONG}.enable=True", f"{OVERLONG}.len=100")
    assert "overlong" not in config["algorithm"]
    assert "dapo" in report.lost[f"{OVERLONG}.enable"]
    assert not report.learned
    overrides = ("ROLLOUT.n=4", "algorithm.adv_estimator=gdpo", "reward_model.reward_manager=dapo")
    assert converted(*overrides, f"{OVERLONG}.enable=True", f"{OVERLONG}.len=9")[1].learned == [f"{OVERLONG}.enable"]


_KEYS = st.sampled_from(
    [
        "data.train_files", "data.train_batch_size", "data.max_prompt_length", "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.actor.optim.lr", "trainer.logger",
        "trainer.experiment_name", "actor_rollout_ref.rollout.multi_turn", "custom_reward_function.path",
        "actor_rollout_ref.rollout.temperature", "trainer.save_freq", "data", "algorithm.filter_groups.enable",
        "actor_rollout_ref.actor.clip_ratio_low", "actor_rollout_ref.rollout.top_p",
        "actor_rollout_ref.actor.grad_clip",
        "actor_rollout_ref.rollout.val_kwargs.temperature", "actor_rollout_ref.actor.kl_loss_coef",
        "algorithm.rollout_correction.rollout_rs", "algorithm.rollout_correction.rollout_rs_threshold",
        "algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.rollout_is_threshold",
        "algorithm.rollout_correction.bypass_mode", "reward_model.reward_manager",
        "reward_model.overlong_buffer.enable", "reward_model.overlong_buffer.len",
        "reward_model.overlong_buffer.penalty_factor",
        "async_training.staleness_threshold", "async_training.trigger_parameter_sync_step",
        "rollout.total_rollout_steps", "actor_rollout_ref.actor.optim.lr_decay_style",
        "actor_rollout_ref.actor.optim.min_lr",
    ]
)  # fmt: skip
_VALUES = st.sampled_from(
    [
        "",
        "null",
        "-1",
        "0",
        "0.5",
        "1e400",
        "nan",
        "True",
        "x",
        "[1,2]",
        "{a: 1}",
        "'",
        "${n}",
        "7",
        "dapo",
        "token",
        "token_k1",
        "0.5_4.0",
        "cosine",
    ]
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
