"""`toolrl verl convert`: a toolrl config from a config or a start script of verl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, ConvertCommand, Reading, merged, read_script, read_text
from toolrl_plugin_verl.convert.learning import LEARNING
from toolrl_plugin_verl.convert.mapping import convert
from toolrl_plugin_verl.convert.programs import MAIN, Program, find_program

_BASES = ("ppo_trainer", "ppo_megatron_trainer", "ppo_veomni_trainer", "_generated_ppo_trainer")
"""verl's own configs, whose defaults the table has."""
_DEEPEST = 8
_LONG = {"--config": "--config-name", "-cn": "--config-name", "-cp": "--config-path", "-cd": "--config-path",
         "--config-dir": "--config-path"}  # fmt: skip
_PRINT = "print the whole config by `python -m verl.trainer.main_ppo … --cfg job --resolve`, and convert that"

DEFAULTS: dict[str, Any] = {
    "data.prompt_key": "prompt",
    "data.image_key": "images",
    "data.video_key": "videos",
    "data.reward_fn_key": "data_source",
    "data.train_max_samples": -1,
    "data.val_max_samples": -1,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.train_batch_size": 1024,
    "data.shuffle": True,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.model.trust_remote_code": False,
    "actor_rollout_ref.model.lora_rank": 0,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 16384,
    "actor_rollout_ref.actor.grad_clip": 1.0,
    "actor_rollout_ref.actor.clip_ratio": 0.2,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.optim.lr": 1e-06,
    "actor_rollout_ref.actor.optim.lr_warmup_steps": -1,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.0,
    "actor_rollout_ref.actor.optim.min_lr_ratio": 0.0,
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant",
    "actor_rollout_ref.actor.optim.weight_decay": 0.01,
    "actor_rollout_ref.actor.optim.betas": [0.9, 0.999],
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.top_k": -1,
    "actor_rollout_ref.rollout.top_p": 1,
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.prompt_length": "${data.max_prompt_length}",
    "actor_rollout_ref.rollout.response_length": "${data.max_response_length}",
    "actor_rollout_ref.rollout.val_kwargs.temperature": 0,
    "actor_rollout_ref.rollout.val_kwargs.n": 1,
    "actor_rollout_ref.rollout.val_kwargs.do_sample": False,
    "actor_rollout_ref.rollout.val_kwargs.top_p": 1.0,
    "actor_rollout_ref.rollout.val_kwargs.top_k": -1,
    "actor_rollout_ref.rollout.multi_turn.enable": False,
    "actor_rollout_ref.rollout.multi_turn.format": "hermes",
    "actor_rollout_ref.rollout.multi_turn.max_parallel_calls": 1,
    "actor_rollout_ref.rollout.multi_turn.max_tool_response_length": 256,
    "actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side": "middle",
    "actor_rollout_ref.rollout.agent.default_agent_loop": "single_turn_agent",
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.filter_groups.enable": False,
    "custom_reward_function.name": "compute_score",
    "reward_model.enable": False,
    "reward_model.reward_manager": "naive",
    "trainer.total_epochs": 30,
    "trainer.experiment_name": "gsm8k",
    "trainer.logger": ["console"],
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
    "trainer.val_before_train": True,
    "actor_rollout_ref.model.lora_alpha": 16.0,
    "critic.optim.lr": 1e-05,
    "critic.cliprange_value": 0.5,
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "trainer.critic_warmup": 0,
    "actor_rollout_ref.rollout.do_sample": True,
    "actor_rollout_ref.rollout.logprobs_mode": "processed_logprobs",
    "actor_rollout_ref.actor.router_replay.mode": "disabled",
    "actor_rollout_ref.actor.optim.optimizer": "AdamW",
    "actor_rollout_ref.actor.optim.weight_decay_incr_style": "constant",
    "actor_rollout_ref.actor.optim.lr_wsd_decay_style": "exponential",
    "actor_rollout_ref.actor.clip_ratio_c": 3.0,
    "algorithm.rollout_correction.rollout_is_threshold": 2.0,
}
"""Those of verl's own defaults that decide what a run does; a config that leaves them out means them."""


class VerlConversion(Conversion):
    """verl's settings."""

    system, defaults, learning = "verl", DEFAULTS, LEARNING


class VerlConvert(ConvertCommand):
    """The command."""

    system = "verl"
    config_help = "verl's YAML, or a shell script that starts verl.trainer.main_ppo"
    overrides_help = "verl's overrides over it, such as actor_rollout_ref.rollout.n=8"

    def convert(self, config: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Conversion]:
        """Read and convert."""
        return convert(VerlConversion(read(config, overrides)))


def read(path: str, overrides: Sequence[str]) -> Reading:
    """Read a YAML or a start script, with further overrides. Raises ConfigError."""
    text, reading = read_text(path, "Give verl's YAML or a start script."), Reading(Path(path).parent)
    if Path(path).suffix in (".yaml", ".yml"):
        reading.tree = _composed(path, text, reading)
    else:
        _take_script(path, text, reading)
    _take_arguments(overrides, reading)
    if "model" in reading.tree and "actor_rollout_ref" not in reading.tree:
        why = "the config has `model` and no `actor_rollout_ref`, so it is one of fine-tuning (SFT) or generation"
        raise ConfigError(why, where=path, hint="`toolrl sft` and `toolrl rollout` do that.")
    return reading


def _take_script(path: str, text: str, reading: Reading) -> None:
    """Take the first command that starts one of verl's trainers."""
    program = find_program(read_script(text, path), path)
    _take_arguments(program.arguments, reading, program)


def _take_arguments(arguments: Sequence[str], reading: Reading, program: Program = MAIN) -> None:
    """Take a trainer's arguments: its own settings first, then the config that they name, then overrides in order."""
    named, overrides, waiting = {"--config-path": "", "--config-name": ""}, [], ""
    for word in arguments:
        flag, equals, value = word.partition("=")
        flag = _LONG.get(flag, flag)
        if waiting:
            named[waiting], waiting = word, ""
        elif flag in named and equals:
            named[flag] = value
        elif flag in named:
            waiting = flag
        elif not word.startswith("-"):
            overrides.append(word)
    if named["--config-name"] and named["--config-name"].removesuffix(".yaml") not in _BASES:
        _take_named(named["--config-path"], named["--config-name"], program.folder, reading)
    own = Reading(reading.folder)
    own.override(program.implied)
    reading.tree = merged(own.tree, reading.tree)
    reading.override(overrides)


def _take_named(folder: str, name: str, program: Path, reading: Reading) -> None:
    """Read the config of `--config-path` and `--config-name` under what is read already. Hydra looks for it beside the
    trainer's module, which is below the folder that the script runs in, or below one that the script is in."""
    file = name if name.endswith(".yaml") else f"{name}.yaml"
    given = Path(folder or ".") / file
    own = program / (folder or "config") / file
    roots = (Path(), reading.folder, *reading.folder.absolute().parents)
    places = (given, reading.folder / given, reading.folder / file, *(root / own for root in roots))
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        why = f"there is no {str(given)!r}, so what it sets is missing; run this where the script runs, or {_PRINT}"
        reading.problems.append((f"--config-name={name}", why))
    else:
        reading.tree = merged(_composed(str(found), found.read_text(encoding="utf-8"), reading), reading.tree)


def _composed(path: str, text: str, reading: Reading, depth: int = 0) -> dict[str, Any]:
    """A YAML with those that its `defaults:` names beside it. Of verl's own the table has what matters."""
    own = reading.read_yaml(path, text)
    own.pop("hydra", None)
    names = own.pop("defaults", None)
    names = names if isinstance(names, list) and Path(path).stem not in _BASES else []
    tree: dict[str, Any] = {}
    for name in names if "_self_" in names else [*names, "_self_"]:
        file, sections = _named_file(name)
        beside = Path(path).parent / f"{file}.yaml"
        if name == "_self_":
            tree = merged(tree, own)
        elif name in _BASES:
            continue
        elif beside.is_file() and depth < _DEEPEST:
            below = _composed(str(beside), beside.read_text(encoding="utf-8"), reading, depth + 1)
            for section in reversed(sections):
                below = {section: below}
            tree = merged(tree, below)
        else:
            reading.problems.append((f"defaults: {name}", f"what it sets is missing; {_PRINT}"))
    return tree


def _named_file(entry: Any) -> tuple[str, list[str]]:
    """Split an entry of `defaults:` into its file and the sections that it goes into. In `group@section.below: name`
    the group is a folder."""
    if not isinstance(entry, dict) or len(entry) != 1:
        return str(entry), []
    ((key, name),) = entry.items()
    group, _, package = str(key).removeprefix("optional ").removeprefix("override ").partition("@")
    return f"{group}/{name}", (package or group.replace("/", ".")).split(".")
