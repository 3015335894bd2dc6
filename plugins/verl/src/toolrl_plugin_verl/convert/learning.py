"""Keys of verl's settings that change what is learned, and advice for those without an equal in toolrl."""

from __future__ import annotations

import re

_SPEED = (
    r"megatron|fsdp|veomni|torchtitan|mindspeed|profile|tokenizer_path|checkpoint|offload|micro_batch|token_len|gpu|nnodes|"
    r"parallel|strategy|resource_pool|num_workers|nccl|dynamic_bsz|remove_padding|fused_kernel|compile|logits_with|"
    r"logits_chunk|entropy_checkpointing|calculate_|load_weight|rollout_n\Z|data_loader_seed|use_liger|use_shm|"
    r"optimizer_impl|precision|_dtype|exp_avg|replica|inference\.|teacher_key|\.log\Z|inflight|num_gen_batches|"
    r"clip_grad_|tiled_mlp|_target_|layered_summon|_ref\.ref\.(?!model\.path)|num_cycles|zero_indexed|lr_decay_steps|total_training_steps|"
    r"launch_reward|reward_model\.rollout|reward_rollout\.rollout|tensorboard|dump|wrap_policy|activation|"
    r"override_optimizer|actor\.engine|model_engine|lora_._init|lora\.merge|prefix_grouper|pad_to|nsys|inference_chat_template"
)
"""Words in keys of settings that change speed, memory or logs, wherever they are."""
_LEARNED = (
    r"(?:algorithm|distillation|async_training|rule_reward|custom_reward_function|reward|reward_model|reward_manager|"
    r"reward_rollout|critic|actor_rollout_ref\.actor)\.",
    r"actor_rollout_ref\.ref\.model\.path",
    r"actor_rollout_ref\.model\.(?:lora|target_modules|exclude_modules|external_lib|custom_chat_template|"
    r"override_config\.\w*(?:drop|pdrop)|mtp\.(?:enable_train|mtp_loss)|freeze)",
    r"actor_rollout_ref\.rollout\.(?:temperature|top_|min_p|repetition|do_sample|ignore_eos|stop|n\Z|quantization|"
    r"logprobs_mode|over_sample|multi_turn|agent\.(?:agent_loop|default|custom)|val_kwargs|max_turns|tool_)",
    r"data\.(?:custom_cls|sampler|datagen|train_files|min_response|filter_acc|filter_trunc|accuracy|oversample|"
    r"apply_chat_template|tool_config|function_tool|seed|max_prompt|max_response)",
    # A section that nobody knows may change anything.
    r"(?!(?:data|actor_rollout_ref|trainer|ray_\w+|\w*profiler?|transfer_queue|rollout|server|skip|hydra|model_engine|"
    r"nccl_timeout|checkpoint\w*)(?:\.|\Z))\w+(?:\.|\Z)",
    r"trainer\.(?:val_only|v1\.trainer_mode|ref_update|critic_warmup|total_)",
)
_EXTRA = r"moe_aux_loss|moe_z_loss|freeze_moe_router"
"""Losses and frozen parts among settings of Megatron."""
LEARNING = re.compile(rf"^(?!.*(?:{_SPEED}))(?:{'|'.join(_LEARNED)})|tool_config_path|{_EXTRA}")
"""Keys of settings that change what is learned."""

OTHERS = {
    "reward_model.model.beta_train": "the config trains a reward model beside the policy (PRIME)",
    "actor_rollout_ref.actor.dpo_beta": "the config trains on pairs of answers (DPO)",
    "actor_rollout_ref.actor.sppo_eta": "toolrl doesn't have the loss of SPPO",
    "actor_rollout_ref.actor.gvpo_beta": "toolrl doesn't have the loss of GVPO",
    "actor_rollout_ref.teacher.server_ip": "the config distills from a server; `algorithm.distillation` does that here",
}
"""Settings of verl's recipes whose configs train something else, and what that is."""

NOTES = {
    "actor_rollout_ref.rollout.multi_turn.interaction_config_path": "no simulated user answers here: write a toolset "
    "whose session has `respond`",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path": "the config plays toolrl's turn loop: write the agent "
    "loop as a harness",
    "data.custom_cls.path": "the rows are read as they are: write what the class makes of them into the data, or a "
    "data set plugin",
}
"""Advice for settings that have no equal."""
