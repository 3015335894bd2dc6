"""What a conversion couldn't carry over, and what means something a little different."""

from __future__ import annotations

from toolrl.cli.conversion import ConversionReport

_REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("critic.",), "of verl's critic: GRPO has none, and that of `preset: ppo` is a copy of the policy"),
    (
        (
            "trainer.n_gpus_per_node", "trainer.nnodes", "trainer.device", "trainer.balance_batch", "ray_init.",
            "ray_kwargs.", "trainer.ray_wait_register_center_timeout", "actor_rollout_ref.hybrid_engine",
            "actor_rollout_ref.nccl_timeout", "transfer_queue.",
        ),
        "how verl lays a run out over machines; here `torchrun` does, or `cluster:`",
    ),
    (tuple(f"{place}tool_config" for place in ("actor_rollout_ref.rollout.", "actor_rollout_ref.rollout.multi_turn.",
                                               "rollout.")),
     "tools are described in a YAML of their own, which `actor_rollout_ref.rollout.multi_turn.tool_config_path` names"),
    (("async_training.", "rollout."),
     "of verl's asynchronous trainers; `rollout.max_staleness` above 0 lets sampling go on while the model is trained"),
    (("actor_rollout_ref.rollout.full_determinism", "actor_rollout_ref.actor.fsdp_config.full_determinism"),
     "`deterministic: true` makes a run the same, bit for bit"),
    (("actor_rollout_ref.rollout.calculate_log_probs", "actor_rollout_ref.actor.use_rollout_log_probs",
      "algorithm.rollout_correction.bypass_mode"),
     "log-probabilities are always kept as sampled; `algorithm.proximal: sampled` takes ratios to them instead of the "
     "trainer's own before an update"),
    (("algorithm.rollout_correction.rollout_rs",),
     "`algorithm.rejection` leaves out what lies outside of an interval; `algorithm.importance` with `mode: reject` "
     "drops what lies above its cap, and takes the weights of the rest"),
    (
        (
            "actor_rollout_ref.actor.fsdp_config.", "actor_rollout_ref.ref.", "actor_rollout_ref.actor.strategy",
            "actor_rollout_ref.actor.megatron.", "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
            "actor_rollout_ref.actor.use_torch_compile", "actor_rollout_ref.actor.checkpoint.",
            "actor_rollout_ref.actor.ppo_micro_batch_size", "actor_rollout_ref.actor.entropy_",
            "actor_rollout_ref.model.use_remove_padding", "actor_rollout_ref.model.use_liger",
            "actor_rollout_ref.model.use_fused_kernels", "actor_rollout_ref.model.enable_activation_offload",
            "actor_rollout_ref.model.use_shm", "actor_rollout_ref.model.fused_kernel_options.",
        ),
        "how verl trains on its hardware; here `trainer.tokens_per_microbatch` bounds memory",
    ),
    (
        (
            "actor_rollout_ref.rollout.tensor_model_parallel_size", "actor_rollout_ref.rollout.gpu_memory_utilization",
            "actor_rollout_ref.rollout.log_prob_", "actor_rollout_ref.rollout.max_num",
            "actor_rollout_ref.rollout.mode",
            "actor_rollout_ref.rollout.enforce_eager", "actor_rollout_ref.rollout.free_cache_engine",
            "actor_rollout_ref.rollout.enable_", "actor_rollout_ref.rollout.load_format",
            "actor_rollout_ref.rollout.engine_kwargs.", "actor_rollout_ref.rollout.dtype",
            "actor_rollout_ref.rollout.max_model_len", "actor_rollout_ref.rollout.multi_stage_wake_up",
            "actor_rollout_ref.rollout.agent.num_workers", "actor_rollout_ref.rollout.layered_summon",
            "actor_rollout_ref.rollout.skip_tokenizer_init", "actor_rollout_ref.rollout.prometheus.",
            "actor_rollout_ref.rollout.disable_log_stats", "actor_rollout_ref.rollout.data_parallel_size",
        ),
        "a setting of verl's inference engine; the engine `vllm` has `tensor_parallel`, `memory_fraction`, `eager`, "
        "`sleep_level` and `max_batch`",
    ),
    (("trainer.project_name", "trainer.default_local_dir", "trainer.default_hdfs_dir"),
     "a run's folder is `run.dir`/`run.name`"),
    (("trainer.resume_mode", "trainer.resume_from_path"), "go on with a run by `toolrl train --resume`"),
    (("trainer.log_val_generations",), "the run folder holds every episode; `toolrl report` shows them"),
    (("trainer.critic_warmup",), "the config trains no critic"),
    (("data.filter_overlong_prompts", "data.truncation"),
     "nothing is cut: a task whose prompt fills `rollout.max_episode_tokens` ends at once as `context_full`"),
    (("data.return_raw_chat", "data.return_raw_input_ids", "data.return_multi_modal_inputs", "data.return_full_prompt"),
     "tasks always carry their messages"),
    (("data.gen_batch_size",),
     "`algorithm.dynamic_sampling` samples as many further groups as a step lacks, and no more beforehand"),
    (("data.val_batch_size", "data.dataloader_num_workers"), "how verl batches its data"),
    (("data.custom_cls.",),
     "a data set class of your own: write a data set plugin, or files that the data set `verl` reads"),
    (("actor_rollout_ref.actor.policy_loss.", "actor_rollout_ref.actor.clip_ratio_c"),
     "of a policy loss that the config doesn't take"),
    (("actor_rollout_ref.actor.shuffle", "actor_rollout_ref.actor.data_loader_seed"),
     "updates take episodes in their order"),
    (("algorithm.kl_ctrl.", "algorithm.kl_penalty", "algorithm.gamma", "algorithm.lam", "algorithm.use_pf_ppo"),
     "of PPO with a critic (`algorithm.preset: ppo`), which the config isn't, or of a KL term in the reward"),
    (("actor_rollout_ref.rollout.multi_turn.interaction_config", "actor_rollout_ref.rollout.interaction_config_file"),
     "an interaction: write it as a toolset whose session has `respond(turn)`"),
    (("actor_rollout_ref.rollout.agent.agent_loop",),
     "an agent loop of your own"),
    (("actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode",
      "actor_rollout_ref.rollout.multi_turn.use_inference_chat_template"),
     "sampled tokens are never encoded again, so there is nothing to check"),
    (("actor_rollout_ref.rollout.trace.", "global_profiler.", "actor_rollout_ref.rollout.profiler.",
      "actor_rollout_ref.actor.profiler."), "tracing and profiling of verl's own"),
    (("reward_model.", "reward.reward_model.", "reward.reward_manager."),
     "a reward model, or a reward manager of verl's"),
    (("actor_rollout_ref.model.override_config.chat_template", "actor_rollout_ref.model.custom_chat_template"),
     "a chat template: save it to a file, and name it as `chat_template` in the options of the chat format `template`"),
    (("actor_rollout_ref.model.override_config",), "settings of the model belong into its config.json"),
    (("actor_rollout_ref.model.lora_", "actor_rollout_ref.model.lora.", "actor_rollout_ref.model.target_modules"),
     "LoRA: `model.lora` has a rank, an alpha and the layers; `model.path` takes a folder with an adapter"),
)  # fmt: skip
"""Beginnings of keys, and why what they set isn't carried over. The first that fits counts."""


class Report(ConversionReport):
    """Knows the settings of this system."""

    reasons = _REASONS
