"""The page on torchforge names every key of its YAML."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/howto/from-torchforge.md"
KEYS = """
group_size local_batch_size batch_size max_req_tokens max_res_tokens model off_by_n rollout_threads
provisioner launcher metric_logging wandb project group reduce_across_ranks logging_mode console dataset path
revision data_split streaming policy engine_args engine_config tensor_parallel_size pipeline_parallel_size
enforce_eager enable_expert_parallel sampling_params sampling_config n max_tokens temperature top_p
use_vllm_builtin_load trainer use_dcp name flavor hf_assets_path optimizer lr eps lr_scheduler warmup_steps
decay_ratio decay_type min_lr_factor training seq_len max_norm steps dtype gc_freq compile parallelism
data_parallel_replicate_degree data_parallel_shard_degree tensor_parallel_degree pipeline_parallel_degree
context_parallel_degree expert_parallel_degree expert_tensor_parallel_degree disable_loss_parallel checkpoint
enable folder initial_load_path initial_load_in_hf last_save_in_hf interval async_mode activation_checkpoint
mode selective_ac_option quantize comm replay_buffer max_policy_age dp_size ref_model services procs
num_replicas hosts with_gpus mesh_name reward_actor actors compute_advantages
"""
"""Of apps/grpo/*.yaml, without what stands below `quantize` and `comm`."""


def test_each_key_is_on_the_page() -> None:
    rows = re.findall(r"^\| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = {word for row in rows for code in re.findall(r"`([^`]+)`", row) for word in re.findall(r"\w+", code)}
    assert not [key for key in KEYS.split() if key not in named]
