"""`toolrl rlfactory convert`: what comes of RLFactory's start scripts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from rlfactory_script import SERVERS, needs_plugins

from toolrl.cli.main import main
from toolrl.config.load import load_config
from toolrl_common.conversion import Conversion, Reading
from toolrl_plugin_rlfactory.convert import RLFactoryConversion, RLFactoryConvert, convert


def converted(*overrides: str) -> tuple[dict[str, Any], Conversion]:
    reading = Reading(Path())
    reading.override(overrides)
    return convert(RLFactoryConversion(reading))


def of_file(path: str, *overrides: str) -> tuple[dict[str, Any], Conversion]:
    return RLFactoryConvert().convert(path, overrides)


def test_the_guides_script_gives_a_config_that_checks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_plugins()
    assert main(["rlfactory", "convert", "main_grpo.sh"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "wrote main_grpo.toolrl.yaml" in said
    assert main(["config", "check", "main_grpo.toolrl.yaml"]) == 0
    config = load_config("main_grpo.toolrl.yaml").config
    place = config.environments["default"]
    assert (place.parser.use, place.max_turns) == ("rlfactory", 3)
    assert place.chat_format.options == {"template_kwargs": {"enable_thinking": False}}
    assert place.tools[0].use == "mcp"
    assert place.tools[0].options == {"config": "./mcp_tools.pydata"}
    assert place.tools[0].policy == {"max_output_tokens": 2000, "truncate": "head", "timeout": 10.0}
    assert (place.rewards[0].use, place.rewards[0].options) == ("rlfactory", {"step_rewards": True})
    assert config.data.train is not None
    assert (config.data.train.use, config.data.train.options) == ("verl", {"path": "./data/train.jsonl"})
    assert (config.model.path, config.model.gradient_checkpointing) == ("./model", True)
    assert (config.rollout.max_turn_tokens, config.rollout.max_episode_tokens) == (512, 4608)
    assert (config.algorithm.group_size, config.algorithm.kl_coef) == (4, 0.001)
    assert (config.trainer.prompts_per_step, config.trainer.updates_per_step, config.trainer.save_every) == (128, 4, 20)
    assert [use.use for use in config.observers] == ["console", "tensorboard"]
    assert (config.run.name, config.evaluation.every) == ("search_with_thinking", 10)


def test_no_setting_is_lost_in_silence(folder: Path) -> None:
    _, report = of_file("main_grpo.sh", "trainer.something_new=1")
    assert {"trainer.something_new", "actor_rollout_ref.model.use_remove_padding"} <= set(report.lost)


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
    assert not [key for key in report.lost if key == f"{env}.reward_mode" or "envs/mine.py" in key]

    manager = folder / "envs" / "tool_manager" / "tags_manager.py"
    manager.write_text("class Tags(ToolManager):\n    def _build_tools(self):\n        self.tool_map = {}\n")
    overrides = [f"{env}.name=search", f"{env}.tool_manager=tags", f"{env}.config_path=null"]
    place = of_file("main_grpo.sh", *overrides)[0]["environments"]["default"]
    assert place["parser"]["options"]["tool_manager"] == "envs/tool_manager/tags_manager.py:Tags"
    assert place["parser"]["options"]["config"]["config_path"] is None
    assert [(tool["use"], tool["options"]) for tool in place["tools"]] == [("rlfactory", place["parser"]["options"])]
    place = of_file("main_grpo.sh", f"{env}.tool_manager=managers.mine:Mine")[0]["environments"]["default"]
    assert [tool["use"] for tool in place["tools"]] == ["rlfactory", "mcp"]


def test_rlfactorys_own_config_lies_below_the_script(folder: Path) -> None:
    configs = folder / "verl/trainer/config"
    configs.mkdir(parents=True)
    (configs / "rl_factory_ppo_trainer.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\n"
        "actor_rollout_ref:\n"
        "  actor: {state_masking: False}\n"
        "  rollout: {top_p: 0.9, temperature: 0.8, max_turns: 5}\n"
        "  env: {name: search, tool_timeout: 20, enable_limiter: True, max_concurrency: 6}\n"
    )
    script = (
        Path("main_grpo.sh").read_text().replace("main_ppo\\\n", "main_ppo --config-name=rl_factory_ppo_trainer\\\n")
    )
    assert "--config-name" in script
    Path("named.sh").write_text(script)
    tree, report = of_file("named.sh", "actor_rollout_ref.actor.state_masking=False")
    assert (tree["rollout"]["temperature"], tree["rollout"]["top_p"]) == (0.8, 0.9)
    place = tree["environments"]["default"]
    assert place["tools"][0]["policy"] == {
        "max_output_tokens": 2000, "truncate": "head", "timeout": 20.0, "concurrency": 6
    }  # fmt: skip
    assert place["max_turns"] == 3, "the script's own settings go over the config's"
    assert report.learned == ["actor_rollout_ref.actor.state_masking"]


def test_an_env_is_found_by_the_name_that_it_is_registered_under(folder: Path) -> None:
    (folder / "envs").mkdir()
    (folder / "envs/__init__.py").write_text(
        "from .judged_example import JudgedEnv\n\nTOOL_ENV_REGISTRY = {'judged': JudgedEnv}\n"
    )
    (folder / "envs/judged_example.py").write_text("from .base import Env\n\n\nclass JudgedEnv(Env):\n    pass\n")
    tree, report = of_file("main_grpo.sh", "actor_rollout_ref.env.name=judged")
    assert tree["environments"]["default"]["parser"]["options"]["env"] == "envs/judged_example.py:JudgedEnv"
    assert not report.learned


def test_a_script_without_rlfactorys_settings_is_one_of_verls(folder: Path) -> None:
    Path("plain.sh").write_text(
        "python3 -m verl.trainer.main_ppo data.train_batch_size=8 actor_rollout_ref.rollout.n=4\n"
    )
    tree, report = of_file("plain.sh", "algorithm.adv_estimator=grpo")
    place = tree["environments"]["default"]
    assert (place["rewards"], place["max_turns"], tree["rollout"]["temperature"]) == (["verl"], 1, 1.0)
    assert any("converted as a config of verl" in remark for remark in report.remarks)


def test_a_reward_model_is_told_first(folder: Path) -> None:
    judged = "reward_rollout.if_use_reward_rollout"
    assert judged not in of_file("main_grpo.sh")[1].learned
    assert of_file("main_grpo.sh", f"{judged}=True")[1].learned == [judged]


def test_what_a_file_imports_that_is_not_there_is_told(folder: Path) -> None:
    """RLFactory's VisionEnv is built on its MMEnv."""
    (folder / "envs").mkdir()
    vision = "from .mmbase import MMEnv\nfrom verl import DataProto\n\n\nclass VisionEnv(MMEnv):\n    pass\n"
    (folder / "envs" / "vision.py").write_text(vision)
    tree, report = of_file("main_grpo.sh", "actor_rollout_ref.env.name=vision")
    assert tree["environments"]["default"]["parser"]["options"]["env"] == "envs/vision.py:VisionEnv"
    assert [key for key in report.lost if ".py: " in key] == ["envs/vision.py: .mmbase"]
    (folder / "envs" / "mmbase.py").write_text("from .vision import X\nfrom verl.utils.model import f\n")
    _, report = of_file("main_grpo.sh", "actor_rollout_ref.env.name=vision")
    assert [key for key in report.lost if ".py: " in key] == ["envs/mmbase.py: verl.utils.model"]


def test_what_is_not_there_is_told() -> None:
    env = "actor_rollout_ref.env"
    tree, report = converted(f"{env}.name=vision", f"{env}.tool_manager=qwen2_5_vl", f"{env}.mcp_mode=pigeon",
                             "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=1", "data.shuffle=False",
                             f"{env}.tool_name_selected=[search-query_rag]", f"{env}.config_path=nowhere.pydata",
                             f"{env}.enable_limiter=True", f"{env}.max_concurrency=10", f"{env}.tool_timeout=7",
                             "actor_rollout_ref.actor.optim.lr=fast", "trainer.logger=[wandb]")  # fmt: skip
    assert set(report.lost) == {
        f"{env}.name", f"{env}.tool_manager", f"{env}.mcp_mode",
        "actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.optim.lr", "trainer.logger",
    }  # fmt: skip
    assert set(report.learned) == set(report.lost) - {"trainer.logger"}
    tool = tree["environments"]["default"]["tools"][0]
    assert tool["options"] == {"config": "nowhere.pydata", "include": ["search-query_rag"]}
    assert (tool["policy"]["timeout"], tool["policy"]["concurrency"]) == (7.0, 10)
    assert tree["data"]["shuffle"] is False
    assert any("can't be read" in remark for remark in report.remarks)


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


def test_what_is_left_out_means_rlfactorys_default() -> None:
    tree, _ = converted()
    place = tree["environments"]["default"]
    assert place["chat_format"]["options"] == {"template_kwargs": {"enable_thinking": True}}
    assert place["tools"][0]["options"] == {"config": "envs/configs/mcp_tools.pydata"}
    assert place["max_turns"] == 2
    algorithm, trainer = tree["algorithm"], tree["trainer"]
    assert (algorithm["preset"], algorithm["group_size"], algorithm["clip_dual"]) == ("grpo", 8, 3.0)
    assert (trainer["prompts_per_step"], tree["run"]["name"], "gradient_checkpointing" in tree["model"]) == (
        128,
        "run",
        False,
    )
    assert (tree["rollout"]["temperature"], tree["rollout"]["top_p"]) == (0.7, 0.95)
    assert place["tools"][0]["policy"]["timeout"] == 10.0
    assert "tools" not in converted("actor_rollout_ref.env.config_path=null")[0]["environments"]["default"]
    llama = converted("actor_rollout_ref.env.tool_manager=llama3")[0]["environments"]["default"]
    assert llama["parser"] == {"use": "rlfactory", "options": {"tool_manager": "llama3"}}


def test_each_tool_of_a_mixed_file_goes_to_its_plugin(folder: Path) -> None:
    """Servers, tools of qwen_agent, and built-in ones."""
    (folder / "envs" / "tools").mkdir(parents=True)
    (folder / "envs" / "tools" / "mine.py").write_text('@register_tool("mine")\nclass Mine(BaseTool):\n    ...\n')
    entries = [SERVERS.strip()[1:-1].strip(), "'code_interpreter'", "{'name': 'mine', 'before': 'So'}"]
    (folder / "mcp_tools.pydata").write_text(f"[{', '.join(entries)}]")
    tree, report = of_file("main_grpo.sh")
    tools = tree["environments"]["default"]["tools"]
    assert [tool["use"] for tool in tools] == ["mcp", "python/code_interpreter", "qwen_agent"]
    assert tools[2]["options"] == {"tools": [{"name": "mine", "before": "So"}], "imports": ["envs/tools/mine.py"]}
    assert tools[1]["options"] == {"persistent": True, "packages": ["*"]}
    assert all(tool["policy"]["max_output_tokens"] == 2000 for tool in tools)
    assert any("mine are qwen_agent's: pip install 'toolrl-plugin-qwen-agent[qwen]'" in text for text in report.remarks)
    (folder / "mcp_tools.pydata").write_text("[3, 'web_search', {'name': 'code_interpreter', 'work_dir': 'x'}]")
    tree, report = of_file("main_grpo.sh")
    uses = [tool["use"] for tool in tree["environments"]["default"]["tools"]]
    assert uses == ["python/code_interpreter", "qwen_agent"]
    assert {"./mcp_tools.pydata: 3", "code_interpreter: work_dir"} <= set(report.lost)
    pytest.importorskip("toolrl_plugin_qwen_agent.options").QwenAgentOptions.model_validate(tools[2]["options"])
