"""RLFactory's settings: of a script that starts verl.trainer.main_ppo, or of a YAML, and overrides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, Reading, read_script, read_text

_REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("reward_rollout.",), "there is no reward model; score by rules, or write a reward that asks one"),
    (("critic.", "trainer.critic_warmup"),
     "of RLFactory's critic: GRPO has none, and that of `preset: ppo` is a copy of the policy"),
    (("algorithm.kl_ctrl.", "algorithm.kl_penalty", "algorithm.gamma", "algorithm.lam", "algorithm.use_kl_in_reward"),
     "of PPO with a critic or a KL term in the reward"),
    (("trainer.n_gpus_per_node", "trainer.nnodes", "ray_init.", "actor_rollout_ref.hybrid_engine"),
     "how RLFactory lays a run out over machines; here `torchrun` does, or `cluster:`"),
    (("trainer.project_name", "trainer.default_local_dir", "trainer.default_hdfs_dir"),
     "a run's folder is `run.dir`/`run.name`"),
    (("actor_rollout_ref.actor.fsdp_config.", "actor_rollout_ref.actor.megatron.", "actor_rollout_ref.ref.",
      "actor_rollout_ref.actor.ppo_micro_batch_size", "actor_rollout_ref.actor.strategy",
      "actor_rollout_ref.actor.use_dynamic_bsz", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
      "actor_rollout_ref.actor.ulysses_sequence_parallel_size", "actor_rollout_ref.model.use_remove_padding"),
     "how RLFactory trains on its hardware; here `trainer.tokens_per_microbatch` bounds memory"),
    (("actor_rollout_ref.rollout.tensor_model_parallel_size", "actor_rollout_ref.rollout.gpu_memory_utilization",
      "actor_rollout_ref.rollout.log_prob_", "actor_rollout_ref.rollout.enforce_eager",
      "actor_rollout_ref.rollout.free_cache_engine", "actor_rollout_ref.rollout.max_num",
      "actor_rollout_ref.rollout.dtype", "actor_rollout_ref.rollout.load_format"),
     "a setting of RLFactory's inference engine; the engine `vllm` has `tensor_parallel`, `memory_fraction`, `eager`, "
     "`sleep_level` and `max_batch`"),
    (("actor_rollout_ref.env.max_size", "actor_rollout_ref.env.cache", "actor_rollout_ref.env.persist",
      "actor_rollout_ref.env.eviction", "actor_rollout_ref.env.use_storage_manager",
      "actor_rollout_ref.env.storage"),
     "RLFactory's store of tools' answers; `policy.cache` keeps those of tools that are `pure`"),
    (("actor_rollout_ref.env.parallel_sse_tool_call",), "the toolset mcp has `instances` for that"),
    (("actor_rollout_ref.env.use_simulated_user_feedback",), "a simulated user: write it as a toolset with `respond`"),
    (("reward_model.",), "the reward `rlfactory` scores, in threads; there is no reward model"),
    (("data.filter_overlong_prompts", "data.truncation"),
     "nothing is cut: a task whose prompt fills `rollout.max_episode_tokens` ends at once as `context_full`"),
    (("data.val_batch_size", "data.return_", "data.use_shm", "data.filter_overlong_prompts_workers"),
     "how RLFactory batches its data"),
    (("defaults", "hydra."), "how Hydra puts a config together; what stands in the file itself is read"),
    (("actor_rollout_ref.rollout.prompt_length", "actor_rollout_ref.rollout.response_length"),
     "the same as data.max_prompt_length and data.max_response_length, and read from there"),
    (("trainer.use_process_reward",), "`actor_rollout_ref.env.use_process_reward` says it, and is read"),
)  # fmt: skip
"""Beginnings of keys, and why what they set isn't carried over. The first that fits counts."""
_TRAINER = re.compile(r"verl\.trainer\.main_(?:ppo|(grpo))\Z")


class RLFactoryConversion(Conversion):
    """RLFactory's settings. −1 says the default, as in verl."""

    system, reasons = "RLFactory", _REASONS

    def whole(self, *keys: str, default: int | None = None, least: int | None = 1) -> int:
        """A whole number within bounds."""
        if default is not None and self.get(*keys) == -1:
            return default
        return super().whole(*keys, default=default, least=least)

    def under(self, section: str) -> list[str]:
        """The keys below a section that the user gave."""
        return [key for key in self._given if key.startswith(f"{section}.")]


def read(path: str, overrides: Sequence[str]) -> Reading:
    """What a script or a YAML holds, with further overrides. Raises ConfigError."""
    text, reading = read_text(path, "Give main_grpo.sh, or a YAML."), Reading(Path(path).parent)
    if Path(path).suffix in (".yaml", ".yml"):
        reading.tree = reading.read_yaml(path, text)
    else:
        reading.override(_arguments(text, path))
    reading.override(overrides)
    return reading


def _arguments(text: str, path: str) -> list[str]:
    """The overrides behind main_ppo. Raises ConfigError."""
    for command in read_script(text, path):
        for place, word in enumerate(command.words):
            started = _TRAINER.search(word)
            if started is not None:
                # There is no main_grpo in verl; guides that name it mean GRPO.
                implied = ["algorithm.adv_estimator=grpo"] if started[1] else []
                return [*implied, *(word for word in command.words[place + 1 :] if word and not word.startswith("-"))]
    raise ConfigError(
        "no command starts verl.trainer.main_ppo",
        where=path,
        hint="Give the script that starts the training, such as main_grpo.sh.",
    )
