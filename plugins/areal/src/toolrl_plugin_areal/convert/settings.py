"""AReaL's settings: their defaults, and which of them change what is learned."""

from __future__ import annotations

import re
from typing import Any

from toolrl_common.conversion import Conversion

_SPEED = (
    r"experiment_name|trial_name|fileroot|scheduling|backend|mb_spec|fsdp|megatron|archon|init_from_scratch|"
    r"disable_dropout|dtype|log_agent|weight_update|\.path\Z|pad_to|attn_impl|tree_training|optimizer\.(?:min_loss|"
    r"loss_scale|hyst)|lora_name|group_size|is_critic|\.temperature\Z|max_new_tokens|tokenizer|subproc|timeout|api_key|"
    r"rollout\.agent\.(?:mode|engine|chat_template|tool_call|reasoning|export)|_version|judge_engine\.(?:max|cons|enable|dump)"
)
"""Words in keys of settings that change speed, memory or logs, wherever they are."""
_LEARNED = (
    r"(?:actor|gconfig|critic|teacher|econfig|agent_run_args|judge_engine|eval_gconfig|tir|workflow|eval_workflow|"
    r"reward_fn_path|agent_builder_path|max_turns|n_trajs|dynamic_bs|max_tokens_per_trajectory|max_llm_calls_per_run|"
    r"export_style|async_training)(?:\.|\Z)|rollout\.(?:agent|check_trajectory|max_head)|train_dataset\.(?:type|shuffle)|"
    # A section that nobody knows may change anything.
    r"tokenizer_path\Z|(?!(?:cluster|saver|recover|evaluator|stats_logger|perf_tracer|memory_profiler|sglang|vllm|scheduler|"
    r"launcher|train_dataset|valid_dataset|rollout|ref|experiment_name|trial_name|allocation_mode|enable_offload|model_path)"
    r"(?:\.|\Z))\w+(?:\.|\Z)"
)
LEARNING = re.compile(rf"^(?!.*(?:{_SPEED}))(?:{_LEARNED})|^(?:gconfig\.temperature|tokenizer_path)\Z")
"""Keys of settings that change what is learned."""

DEFAULTS: dict[str, Any] = {
    "seed": 1,
    "total_train_epochs": 1,
    "gconfig.n_samples": 1,
    "gconfig.max_new_tokens": 16384,
    "gconfig.temperature": 1.0,
    "gconfig.top_p": 1.0,
    "gconfig.top_k": 100_000_000,
    "actor.dtype": "bfloat16",
    "actor.gradient_checkpointing": False,
    "actor.optimizer.type": "adam",
    "actor.optimizer.lr": 0.001,
    "actor.optimizer.weight_decay": 0.01,
    "actor.optimizer.beta1": 0.9,
    "actor.optimizer.beta2": 0.999,
    "actor.optimizer.eps": 1e-08,
    "actor.optimizer.min_lr_ratio": 0.0,
    "actor.optimizer.lr_scheduler_type": "constant",
    "actor.optimizer.warmup_steps_proportion": 0.001,
    "actor.optimizer.gradient_clipping": 1.0,
    "actor.ppo_n_minibatches": 4,
    "actor.eps_clip": 0.2,
    "actor.reward_scaling": 1.0,
    "actor.reward_bias": 0.0,
    "actor.kl_ctl": 0.1,
    "actor.kl_estimator": "k1",
    "actor.reward_clip": 20.0,
    "actor.discount": 1.0,
    "actor.gae_lambda": 1.0,
    "actor.recompute_logprob": False,
    "actor.prox_logp_method": "recompute",
    "actor.reward_norm.std_unbiased": True,
    "actor.adv_norm.std_unbiased": True,
    "actor.reward_norm.eps": 1e-05,
    "actor.adv_norm.eps": 1e-05,
    "critic.eps_clip": 0.5,
    "rollout.agent.turn_discount": 1.0,
    "train_dataset.batch_size": 1,
    "train_dataset.shuffle": True,
    "tir.max_turns": 2,
    "tir.max_length": 3000,
    "tir.tool_timeout": 30,
    "tir.enable_tools": "python",
    "tir.is_chat_model": False,
}
"""AReaL's own defaults that decide what a run does; a config that leaves them out means them."""


class ArealConversion(Conversion):
    """A conversion in which a null is AReaL's default, unless `null` asks for it."""

    system, defaults, learning = "AReaL", DEFAULTS, LEARNING

    def get(self, *keys: str, default: Any = None) -> Any:
        """Return what the user gave, else AReaL's default."""
        value = super().get(*keys, default=default)
        return next((self.defaults[key] for key in keys if key in self.defaults), default) if value is None else value

    def given(self, *keys: str) -> bool:
        """Tell whether the user gave a value of one of these, or of a setting below it. A null is none."""
        return any(
            value is not None and (name in keys or name.startswith(tuple(f"{key}." for key in keys)))
            for name, value in self._given.items()
        )

    def null(self, key: str) -> bool:
        """Tell whether the user set it to null."""
        self._used.add(key)
        return key in self._given and self._given[key] is None
