"""What a conversion couldn't carry over, and what means something a little different."""

from __future__ import annotations

from toolrl.cli.conversion import ConversionReport

_REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "allocation_mode", "cluster.", "scheduler.", "launcher.", "enable_offload", "actor.scheduling_",
            "actor.fsdp.", "actor.megatron.", "actor.archon.", "actor.backend", "rollout.scheduling_spec",
            "rollout.backend", "weight_update_mode", "actor.weight_update_mode", "n_nodes", "n_gpus_per_node",
        ),
        "how AReaL lays a run out over machines; here `torchrun` does, or `cluster:`",
    ),
    (("sglang.", "vllm."), "a setting of AReaL's inference servers"),
    (("actor.behav_imp_weight", "actor.behave_imp_weight", "actor.rejection_sampling"),
     "of the decoupled loss, or a bound that `algorithm.importance` hasn't"),
    (("actor.recompute_logprob", "actor.prox_logp_method"),
     "log-probabilities before an update are always the trainer's own"),
    (("rollout.",), "how AReaL feeds its inference servers"),
    (("actor.adv_norm",), "advantages are set off against their group, and not normalized a second time"),
    (("actor.reward_norm.", "actor.group_reward_norm", "actor.group_size"),
     "rewards are set off against their group, whose size is `algorithm.group_size`"),
    (("actor.reward_clip", "actor.max_reward_clip"), "rewards aren't clipped"),
    (("actor.m2_threshold", "actor.use_sapo_loss", "actor.sapo_"),
     "the config's loss is the clipped surrogate; see `algorithm.surrogate` and `algorithm.policy_loss` for others"),
    (("actor.discount", "actor.gae_lambda", "actor.kl_estimator"),
     "of PPO with returns; here an episode has one advantage"),
    (("actor.use_lora", "actor.lora_", "actor.target_modules", "actor.peft_type"),
     "LoRA: give `model.lora` its rank, alpha and layers"),
    (("actor.max_new_tokens", "actor.temperature"), "the same as gconfig's, and read from there"),
    (("actor.mb_spec.", "actor.pad_to_maximum", "actor.grad_reduce_dtype"),
     "how AReaL trains on its hardware; here `trainer.tokens_per_microbatch` bounds memory"),
    (("actor.disable_dropout",), "the models that are trained have no dropout"),
    (("actor.attn_impl",), "`model.attention` names transformers' implementation, if its default doesn't suit"),
    (("actor.optimizer.",), "the optimizer is AdamW with float32 masters, without a loss scale"),
    (("actor.experiment_name", "actor.trial_name", "trial_name"), "a run has one name, `run.name`"),
    (("ref.",), "the reference is the model at the start of the run"),
    (("critic.",), "GRPO has no critic; `algorithm.preset: ppo` has one"),
    (("gconfig.stop", "gconfig.stop_token_ids"),
     "the parser says what ends generation, the chat format what ends a turn"),
    (("gconfig.",), "sampling has temperature, top_p and top_k"),
    (("train_dataset.max_length", "valid_dataset.max_length"),
     "no row is left out: a task whose prompt fills `rollout.max_episode_tokens` ends at once as `context_full`"),
    (("train_dataset.", "valid_dataset."), "how AReaL loads and batches its data"),
    (("saver.", "recover.", "evaluator."),
     "a run's folder is `run.dir`/`run.name`; go on with it by `toolrl train --resume`"),
    (("stats_logger.", "perf_tracer."),
     "metrics.jsonl always, console and tensorboard are there; see `observers`"),
    (("tir.daytona", "tir.sandbox", "tir.e2b", "tir.cube"),
     "code runs in the plugin `python`; for a sandbox elsewhere there is `sandbox-fusion`"),
)  # fmt: skip
"""Beginnings of keys, and why what they set isn't carried over. The first that fits counts."""


class Report(ConversionReport):
    """Knows the settings of this system."""

    reasons = _REASONS
