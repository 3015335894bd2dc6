"""AReaL's TIR example runs from problems to report with a few steps, and so does its config once it is converted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

for name in ("torch", "transformers", "math_verify", "toolrl_plugin_areal", "toolrl_plugin_python",
             "toolrl_plugin_calculator", "toolrl_plugin_transformers"):  # fmt: skip
    pytest.importorskip(name)

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "tir"
CONFIG = """
# Each section that AReaL's tir_math_config.yaml has, with its references.
experiment_name: converted
trial_name: trial0
allocation_mode: sglang:d4p1t1+d4p1t1
cluster: {fileroot: experiments, n_nodes: 1, n_gpus_per_node: 8, name_resolve: {type: nfs, nfs_record_root: names}}
seed: 1
enable_offload: false
total_train_epochs: 3
tokenizer_path: ${actor.path}
rollout:
  experiment_name: ${experiment_name}
  trial_name: ${trial_name}
  max_concurrent_rollouts: 128
  queue_size: null
  consumer_batch_size: ${train_dataset.batch_size}
  max_head_offpolicyness: 2
  scheduling_spec: ${actor.scheduling_spec}
  fileroot: ${cluster.fileroot}
  tokenizer_path: ${tokenizer_path}
gconfig: {n_samples: 2, min_new_tokens: 0, max_new_tokens: 24, greedy: false, temperature: 1.0}
actor:
  experiment_name: ${experiment_name}
  path: runs/model
  dtype: bfloat16
  gradient_checkpointing: true
  mb_spec: {max_tokens_per_mb: 10240}
  optimizer: {type: adam, lr: 1.70e-5, weight_decay: 0.017, beta1: 0.9, beta2: 0.999, eps: 1e-8,
              lr_scheduler_type: constant, gradient_clipping: 1.0, warmup_steps_proportion: 0.001}
  group_size: ${gconfig.n_samples}
  eps_clip: 0.4
  temperature: ${gconfig.temperature}
  reward_scaling: 10.0
  reward_bias: -0.5
  kl_ctl: 0.0
  ppo_n_minibatches: 1
  recompute_logprob: true
  use_decoupled_loss: true
  behav_imp_weight_cap: 5.0
  dynamic_sampling: false
  reward_norm: {mean_level: group, std_level: group, group_size: "${gconfig.n_samples}"}
  adv_norm: {mean_level: batch, std_level: batch}
  max_new_tokens: ${gconfig.max_new_tokens}
  scheduling_spec: [{task_type: worker, port_count: 2, gpu: 1, cpu: 4, mem: 32, env_vars: {}}]
ref: {path: "${actor.path}", dtype: "${actor.dtype}", optimizer: null, scheduling_spec: "${actor.scheduling_spec}"}
sglang: {model_path: "${actor.path}", random_seed: "${seed}", dtype: "${actor.dtype}", context_length: 4096}
vllm: {model: "${actor.path}", seed: "${seed}", max_model_len: 32768}
tir: {max_turns: 2, max_length: 200, tool_timeout: 30, enable_tools: python;calculator}
train_dataset: {batch_size: 2, shuffle: true, pin_memory: true, path: runs/problems/train.jsonl, max_length: 99}
valid_dataset: {batch_size: 2, shuffle: false, path: runs/problems/test.jsonl, max_length: 99}
saver: {experiment_name: "${experiment_name}", freq_epochs: 1, freq_steps: null, freq_secs: null}
recover: {mode: disabled, fileroot: "${cluster.fileroot}", freq_epochs: 1, freq_secs: 3600}
evaluator: {trial_name: "${trial_name}", freq_epochs: 1, freq_steps: null}
stats_logger: {fileroot: "${cluster.fileroot}", wandb: {mode: disabled}}
perf_tracer: {fileroot: "${cluster.fileroot}", enabled: false, session_tracer: {enabled: false}}
"""


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_example_runs(tmp_path: Path) -> None:
    said = run(tmp_path, str(EXAMPLE / "example.py"), "--dir", "runs", "--sft-steps", "3", "--steps", "2")
    assert "before GRPO" in said
    assert "after GRPO" in said
    assert (tmp_path / "runs" / "grpo" / "report.html").is_file()


def test_a_converted_config_is_checked_and_rolled_out(tmp_path: Path) -> None:
    run(tmp_path, str(EXAMPLE / "make_data.py"), "runs/problems")
    run(tmp_path, str(EXAMPLE / "make_model.py"), "runs/model")
    (tmp_path / "tir_config.yaml").write_text(CONFIG)
    run(tmp_path, "-m", "toolrl", "areal", "convert", "tir_config.yaml", "--out", "tir.yaml")
    run(tmp_path, "-m", "toolrl", "config", "check", "tir.yaml")
    run(tmp_path, "-m", "toolrl", "rollout", "tir.yaml", "--tasks", "2", "--episodes", "2")
    assert (tmp_path / "runs" / "converted" / "report.html").is_file()
