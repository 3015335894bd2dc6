"""Settings by their names in verl and TRL, for the message of an unknown key."""

from __future__ import annotations

from collections.abc import Collection

VERL, TRL = "verl", "TRL"

OTHER_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "algorithm.clip_dual": {VERL: ("clip_ratio_c",), TRL: ("delta",)},
    "algorithm.clip_high": {VERL: ("clip_ratio_high",), TRL: ("epsilon_high",)},
    "algorithm.clip_low": {VERL: ("clip_ratio_low",), TRL: ("epsilon",)},
    "algorithm.entropy_coef": {VERL: ("entropy_coeff",), TRL: ("entropy_coef",)},
    "algorithm.group_size": {VERL: ("rollout.n",), TRL: ("num_generations",)},
    "algorithm.kl_coef": {VERL: ("kl_loss_coef",), TRL: ("beta",)},
    "algorithm.loss_aggregation": {VERL: ("loss_agg_mode",), TRL: ("loss_type",)},
    "algorithm.mask_truncated": {TRL: ("mask_truncated_completions",)},
    "algorithm.overlong": {VERL: ("overlong_buffer_cfg",), TRL: ("get_soft_overlong_punishment",)},
    "algorithm.scale": {VERL: ("norm_adv_by_std_in_grpo",), TRL: ("scale_rewards",)},
    "data.eval": {VERL: ("data.val_files",), TRL: ("eval_dataset",)},
    "data.train": {VERL: ("data.train_files",), TRL: ("train_dataset",)},
    "environments.NAME.max_turns": {VERL: ("multi_turn.max_assistant_turns",), TRL: ("max_tool_calling_iterations",)},
    "environments.NAME.rewards": {VERL: ("custom_reward_function",), TRL: ("reward_funcs",)},
    "environments.NAME.tools": {VERL: ("multi_turn.tool_config_path",), TRL: ("tools",)},
    "evaluation.every": {VERL: ("trainer.test_freq",), TRL: ("eval_steps",)},
    "model.gradient_checkpointing": {VERL: ("model.enable_gradient_checkpointing",), TRL: ("gradient_checkpointing",)},
    "rollout.max_turn_tokens": {VERL: ("max_response_length",), TRL: ("max_completion_length",)},
    "trainer.epochs_per_step": {VERL: ("ppo_epochs",), TRL: ("num_iterations",)},
    "trainer.keep_checkpoints": {VERL: ("max_actor_ckpt_to_keep",), TRL: ("save_total_limit",)},
    "trainer.learning_rate": {VERL: ("actor.optim.lr",), TRL: ("learning_rate",)},
    "trainer.offload": {VERL: ("fsdp_config.optimizer_offload",)},
    "trainer.prompts_per_step": {VERL: ("data.train_batch_size",)},
    "trainer.save_every": {VERL: ("trainer.save_freq",), TRL: ("save_steps",)},
    "trainer.sequence_parallel": {VERL: ("actor.ulysses_sequence_parallel_size",)},
    "trainer.steps": {VERL: ("trainer.total_training_steps",), TRL: ("max_steps",)},
    "trainer.tokens_per_microbatch": {
        VERL: ("ppo_max_token_len_per_gpu",),
        TRL: ("per_device_train_batch_size",),
    },
    "trainer.warmup_steps": {VERL: ("optim.lr_warmup_steps",), TRL: ("warmup_steps",)},
    "run.dir": {VERL: ("trainer.default_local_dir",), TRL: ("output_dir",)},
}
"""Names in other systems by the setting that they stand for; `docs/howto/come-from-verl-or-trl.md` has them, too."""


def counterpart(key: str, beside: Collection[str] = ()) -> str | None:
    """The setting that another system calls `key`: `learning_rate (verl: actor.optim.lr; TRL: learning_rate)`, with its
    section unless it is one of the names `beside` the key. None if no system has the name."""
    for setting, systems in OTHER_NAMES.items():
        if any(key == name.rpartition(".")[2] for names in systems.values() for name in names):
            own = setting.rpartition(".")[2]
            called = "; ".join(f"{system}: {', '.join(names)}" for system, names in systems.items())
            return f"{own if own in beside else setting} ({called})"
    return None
