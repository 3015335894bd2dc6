"""`toolrl rlfactory convert`: what comes of RLFactory's start scripts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlfactory_script import needs_plugins

from toolrl.cli.main import main
from toolrl.config.load import check_config, load_config
from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, Reading
from toolrl_plugin_rlfactory.convert.command import Convert
from toolrl_plugin_rlfactory.convert.conversion import RLFactoryConversion
from toolrl_plugin_rlfactory.convert.mapping import convert


def lost(report: Conversion) -> dict[str, str]:
    return dict(report.lost)


def converted(*overrides: str) -> tuple[dict[str, Any], Conversion]:
    reading = Reading(Path())
    reading.override(overrides)
    return convert(RLFactoryConversion(reading))


def of_file(path: str, *overrides: str) -> tuple[dict[str, Any], Conversion]:
    return Convert().convert(path, overrides)


def test_the_guides_script_gives_a_config_that_checks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_plugins()
    assert main(["rlfactory", "convert", "main_grpo.sh"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "wrote main_grpo.toolrl.yaml" in said
    assert "RLFactory samples only the first turn of an episode" in said
    assert main(["config", "check", "main_grpo.toolrl.yaml"]) == 0
    config = load_config("main_grpo.toolrl.yaml").config
    place = config.environments["default"]
    assert (place.parser.use, place.max_turns) == ("rlfactory", 3)
    assert place.chat_format.options == {"template_kwargs": {"enable_thinking": False}}
    assert place.tools[0].use == "mcp"
    assert place.tools[0].options == {"config": "./mcp_tools.pydata"}
    assert place.tools[0].policy == {"max_output_tokens": 2000, "truncate": "head"}
    assert (place.rewards[0].use, place.rewards[0].options) == ("rlfactory", {"step_rewards": True})
    assert config.data.train is not None
    assert config.data.train.options["fields"]["answer"] == "reward_model.ground_truth"
    assert (config.model.path, config.model.gradient_checkpointing) == ("./model", True)
    assert (config.rollout.max_turn_tokens, config.rollout.max_episode_tokens) == (512, 4608)
    assert (config.algorithm.group_size, config.algorithm.kl_coef) == (4, 0.001)
    assert (config.trainer.prompts_per_step, config.trainer.updates_per_step, config.trainer.save_every) == (128, 4, 20)
    assert [use.use for use in config.observers] == ["console", "tensorboard"]
    assert (config.run.name, config.evaluation.every) == ("search_with_thinking", 10)


def test_no_setting_is_lost_in_silence(folder: Path) -> None:
    tree, report = of_file("main_grpo.sh", "trainer.something_new=1")
    assert lost(report)["trainer.something_new"] == "toolrl has no counterpart that is known here"
    assert lost(report)["actor_rollout_ref.model.use_remove_padding"].startswith("how RLFactory trains")
    assert tree["model"]["path"] == "./model"


def test_variables_of_the_environment_stay(folder: Path) -> None:
    (folder / "run.sh").write_text(
        "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=$HOME_OF/m "
        "data.train_files=$(ls *.parquet) data.val_files='~/test.parquet' oddity\n"
    )
    tree, report = of_file("run.sh")
    assert tree["model"]["path"] == "${HOME_OF}/m"
    assert tree["data"]["eval"]["use"] == "parquet"
    assert tree["data"]["eval"]["options"]["path"] == "${HOME}/test.parquet"
    assert "set it by hand" in lost(report)["data.train_files"]
    assert "is no override" in lost(report)["oddity"]


def test_an_env_and_a_manager_of_ones_own(folder: Path) -> None:
    (folder / "envs" / "tool_manager").mkdir(parents=True)
    (folder / "envs" / "mine.py").write_text("from .base import Env\n\n\nclass MyEnv(Env):\n    pass\n")
    env = "actor_rollout_ref.env"
    tree, report = of_file("main_grpo.sh", f"{env}.name=mine", f"{env}.reward_mode=multi_dim")
    place = tree["environments"]["default"]
    config = {"mcp_mode": "stdio", "enable_thinking": False, "use_process_reward": True, "reward_mode": "multi_dim"}
    classes = {"env": "envs/mine.py:MyEnv", "config": config}
    assert place["parser"] == {"use": "rlfactory", "options": classes}
    assert place["rewards"] == [{"use": "rlfactory", "options": {**classes, "step_rewards": True}}]
    assert [tool["use"] for tool in place["tools"]] == ["mcp"]
    assert f"{env}.reward_mode" not in lost(report)
    assert not any("envs/mine.py" in key for key in lost(report))

    manager = folder / "envs" / "tool_manager" / "tags_manager.py"
    manager.write_text("class Tags(ToolManager):\n    def _build_tools(self):\n        self.tool_map = {}\n")
    overrides = [f"{env}.name=search", f"{env}.tool_manager=tags", f"{env}.config_path=null"]
    place = of_file("main_grpo.sh", *overrides)[0]["environments"]["default"]
    assert place["parser"]["options"]["tool_manager"] == "envs/tool_manager/tags_manager.py:Tags"
    assert place["parser"]["options"]["config"]["config_path"] is None
    assert [(tool["use"], tool["options"]) for tool in place["tools"]] == [("rlfactory", place["parser"]["options"])]
    manager.write_text("class Tags(QwenManager):\n    def parse_end_flag(self, text):\n        return False, None\n")
    place = of_file("main_grpo.sh", *overrides[:2])[0]["environments"]["default"]
    assert [tool["use"] for tool in place["tools"]] == ["mcp"]
    place = of_file("main_grpo.sh", f"{env}.tool_manager=managers.mine:Mine")[0]["environments"]["default"]
    assert [tool["use"] for tool in place["tools"]] == ["rlfactory", "mcp"]


@pytest.mark.parametrize("beside", [True, False])
def test_a_class_on_a_base_that_is_not_there_is_told(folder: Path, beside: bool) -> None:
    """RLFactory's VisionEnv is built on its MMEnv."""
    (folder / "envs").mkdir()
    vision = "from PIL import Image\nfrom .mmbase import MMEnv\n\n\nclass VisionEnv(MMEnv):\n    pass\n"
    (folder / "envs" / "vision.py").write_text(vision)
    if beside:
        (folder / "envs" / "mmbase.py").write_text("from verl import DataProto\n\n\nclass MMEnv(ABC):\n    pass\n")
    name = "actor_rollout_ref.env.name"
    tree, report = of_file("main_grpo.sh", f"{name}=vision")
    assert "envs/vision.py:VisionEnv isn't derived from one of Env, SearchEnv" in lost(report)[name]
    assert tree["environments"]["default"]["rewards"] == [{"use": "rlfactory", "options": {"step_rewards": True}}]
    if beside:
        (folder / "envs" / "mmbase.py").write_text(
            "from envs.base import Env\nfrom verl.utils.model import position_ids\n\n\nclass MMEnv(Env):\n    pass\n"
        )
        tree, report = of_file("main_grpo.sh", f"{name}=vision")
        assert tree["environments"]["default"]["parser"]["options"]["env"] == "envs/vision.py:VisionEnv"
        (folder / "envs" / "vision.py").write_text(vision + "from verl.utils.model import position_ids\n")
        _, report = of_file("main_grpo.sh", f"{name}=vision")
        assert "no stand-in" in lost(report)["envs/vision.py: verl.utils.model.position_ids"]


def test_what_is_not_there_is_told() -> None:
    env = "actor_rollout_ref.env"
    tree, report = converted(f"{env}.name=vision", f"{env}.tool_manager=qwen2_5_vl", f"{env}.mcp_mode=pigeon",
                             "algorithm.adv_estimator=remax", "actor_rollout_ref.rollout.n=1", "data.shuffle=False",
                             f"{env}.tool_name_selected=[search-query_rag]", f"{env}.config_path=nowhere.pydata",
                             f"{env}.enable_limiter=True", f"{env}.max_concurrency=10", f"{env}.tool_timeout=7",
                             "actor_rollout_ref.actor.optim.lr=fast", "trainer.logger=[wandb]")  # fmt: skip
    assert set(lost(report)) == {
        f"{env}.name", f"{env}.tool_manager", f"{env}.mcp_mode", "algorithm.adv_estimator",
        "actor_rollout_ref.rollout.n",
        "turns after the first sampled greedily", "actor_rollout_ref.actor.optim.lr", "trainer.logger",
    }  # fmt: skip
    tool = tree["environments"]["default"]["tools"][0]
    assert tool["options"] == {"config": "nowhere.pydata", "include": ["search-query_rag"]}
    assert (tool["policy"]["timeout"], tool["policy"]["concurrency"]) == (7.0, 10)
    assert tree["data"]["shuffle"] is False
    assert any("can't be read" in remark for remark in report.remarks)


def test_ppo_has_a_critic() -> None:
    overrides = ["algorithm.adv_estimator=gae", "actor_rollout_ref.rollout.n=1", "algorithm.gamma=0.99",
                 "algorithm.lam=0.9", "critic.optim.lr=2e-5", "critic.cliprange_value=0.3",
                 "trainer.critic_warmup=5"]  # fmt: skip
    tree, report = converted(*overrides)
    algorithm = tree["algorithm"]
    assert (algorithm["preset"], algorithm["group_size"], algorithm["discount"]) == ("ppo", 1, 0.99)
    assert algorithm["critic"] == {"learning_rate": 2e-5, "gae_lambda": 0.9, "value_clip": 0.3, "warmup_steps": 5}
    assert not {override.partition("=")[0] for override in overrides} & set(lost(report))
    assert any("token by token" in remark for remark in report.remarks)
    critic = converted("algorithm.adv_estimator=gae")[0]["algorithm"]["critic"]
    assert critic == {"learning_rate": 1e-5, "gae_lambda": 1.0, "value_clip": 0.5}


def test_main_grpo_means_grpo(folder: Path) -> None:
    script = (folder / "main_grpo.sh").read_text()
    (folder / "main_grpo.sh").write_text(script.replace("main_ppo", "main_grpo"))
    assert of_file("main_grpo.sh")[0]["algorithm"]["preset"] == "grpo"


def test_tensorboard_needs_a_package(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_plugins()
    assert main(["rlfactory", "convert", "main_grpo.sh", "trainer.logger=[tensorboard]"]) == 0
    assert "pip install 'toolrl[tensorboard]'" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    main(["config", "check", "main_grpo.toolrl.yaml"])
    said = " ".join("".join(capsys.readouterr()).split())
    assert "observers[1].options: needs the package tensorboard: pip install 'toolrl[tensorboard]'" in said
    assert main(["rlfactory", "convert", "main_grpo.sh", "trainer.logger=[console]", "--force"]) == 0
    assert "toolrl[tensorboard]" not in capsys.readouterr().out


def test_a_yaml_is_read_too(folder: Path) -> None:
    (folder / "run.yaml").write_text("actor_rollout_ref: {rollout: {n: 5, max_turns: 7}, env: {name: search}}\n")
    tree, _ = of_file("run.yaml", "actor_rollout_ref.rollout.n=6")
    assert (tree["algorithm"]["group_size"], tree["environments"]["default"]["max_turns"]) == (6, 7)


def test_references_of_a_yaml_are_followed(folder: Path) -> None:
    (folder / "run.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\n"
        "data: {train_files: '${oc.env:DATA,./data}/train.jsonl', max_response_length: 100, max_prompt_length: 60}\n"
        "actor_rollout_ref:\n"
        "  model: {path: '${oc.env:MODEL}'}\n"
        "  rollout: {n: 4, max_turns: '${actor_rollout_ref.rollout.n}',\n"
        "            response_length: '${data.max_response_length}'}\n"
        "  actor: {entropy_coeff: '${nowhere.at.all}', clip_ratio: '${actor_rollout_ref.actor.clip_ratio}'}\n"
    )
    tree, report = of_file("run.yaml")
    assert tree["environments"]["default"]["max_turns"] == 4
    assert tree["model"]["path"] == "${MODEL}"
    assert tree["data"]["train"]["options"]["path"] == "${DATA:-./data}/train.jsonl"
    assert (tree["rollout"]["max_turn_tokens"], tree["rollout"]["max_episode_tokens"]) == (100, 160)
    told = lost(report)
    assert "isn't in the file" in told["actor_rollout_ref.actor.entropy_coeff"]
    assert "refers to itself" in told["actor_rollout_ref.actor.clip_ratio"]
    assert "read from there" in told["actor_rollout_ref.rollout.response_length"]
    assert "Hydra" in told["defaults"]


def test_defaults_and_sums_of_a_script(folder: Path) -> None:
    (folder / "run.sh").write_text(
        'NODES=${NODES:-4}\nTP=${TP:-$NODES}\nHOME_DATA=${DATA:-"${HOME}/verl"}\nlong=$((1024 * 8))\n'
        "both=$(((long + 24) / 2))\nodd=$((2 ** 3))\n"
        "python3 -m verl.trainer.main_ppo --config-name='x' data.train_batch_size=$((TP * 16)) \\\n"
        " data.max_response_length=${long} data.max_prompt_length=$both data.train_files=$HOME_DATA/t.parquet \\\n"
        " actor_rollout_ref.rollout.n=${odd} actor_rollout_ref.actor.optim.lr=${LR:-3e-6} \\\n"
        ' actor_rollout_ref.actor.loss_agg_mode="seq-mean-token-mean"\n'
    )
    tree, report = of_file("run.sh")
    assert tree["trainer"]["prompts_per_step"] == 64
    assert (tree["rollout"]["max_turn_tokens"], tree["rollout"]["max_episode_tokens"]) == (8192, 8192 + 4108)
    assert tree["data"]["train"]["options"]["path"] == "${HOME}/verl/t.parquet"
    assert tree["trainer"]["learning_rate"] == 3e-6
    assert tree["algorithm"]["loss_aggregation"] == "sequence_mean"
    assert "set it by hand" in lost(report)["actor_rollout_ref.rollout.n"]


@pytest.mark.parametrize(
    ("override", "algorithm"),
    [
        ("algorithm.adv_estimator=rloo", {"baseline": "leave_one_out", "scale": "none"}),
        ("algorithm.adv_estimator=reinforce_plus_plus", {"baseline": "batch_mean", "scale": "advantage_std"}),
        ("algorithm.norm_adv_by_std_in_grpo=False", {"scale": "none"}),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", {"ratio": "sequence"}),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum", {"loss_aggregation": "sequence_sum"}),
        ("actor_rollout_ref.actor.clip_ratio_c=10.0", {"clip_dual": 10.0}),
        ("actor_rollout_ref.actor.kl_loss_type=mse", {"kl_coef": 0.001, "kl_estimator": "k2", "kl_correction": False}),
    ],
)
def test_algorithms(override: str, algorithm: dict[str, Any]) -> None:
    needs_plugins()
    plain = converted("actor_rollout_ref.actor.use_kl_loss=True")[0]["algorithm"]
    assert plain == {"preset": "grpo", "group_size": 8, "loss_aggregation": "token_mean", "clip_low": 0.2,
                     "clip_high": 0.2, "clip_dual": 3.0, "kl_coef": 0.001, "kl_correction": False}  # fmt: skip
    tree, report = converted("actor_rollout_ref.actor.use_kl_loss=True", override)
    assert tree["algorithm"] == {**plain, **algorithm}
    assert not {key for key in lost(report) if key.startswith(("algorithm.", "actor_rollout_ref.actor."))}
    check_config(tree, source="here")


def test_what_is_left_out_means_rlfactorys_default() -> None:
    tree, report = converted()
    place = tree["environments"]["default"]
    assert place["chat_format"]["options"] == {"template_kwargs": {"enable_thinking": True}}
    assert place["tools"][0]["options"] == {"config": "envs/configs/mcp_tools.pydata"}
    assert place["max_turns"] == 2
    assert tree["algorithm"]["loss_aggregation"] == "token_mean"
    assert "top_p" not in tree["rollout"]
    assert any("0.95" in remark for remark in report.remarks)
    assert "tools" not in converted("actor_rollout_ref.env.config_path=null")[0]["environments"]["default"]
    central = converted("actor_rollout_ref.env.tool_manager=centralized_qwen3")[0]["environments"]["default"]
    assert central["tools"][0]["policy"] == {
        "max_output_tokens": 16384, "truncate": "head", "timeout": 10.0, "concurrency": 10,
    }  # fmt: skip
    assert central["parser"] == "rlfactory"
    llama = converted("actor_rollout_ref.env.tool_manager=llama3")[0]["environments"]["default"]
    assert llama["parser"] == {"use": "rlfactory", "options": {"tool_manager": "llama3"}}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.sh", "echo hello\n", "no command starts"),
        ("a.yaml", "[1]\n", "a mapping of sections"),
        ("gone.sh", None, "can't be read"),
    ],
)
def test_what_can_not_be_read(folder: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=says):
        of_file(name)


@settings(max_examples=100)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=5))
def test_any_override_is_taken_or_told(words: list[str]) -> None:
    tree, _ = converted(*words, *(f"actor_rollout_ref.rollout.n={word}" for word in words))
    assert tree["algorithm"]["group_size"] >= 2
