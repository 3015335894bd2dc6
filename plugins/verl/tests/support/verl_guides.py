"""The files that a reader of verl's guides has: start scripts, hydra YAML, tool YAML, and small data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HYDRA = """
hydra:
  searchpath:
    - file://verl/trainer/config

defaults:
  - ppo_trainer
  - _self_

data:
  max_prompt_length: 300
  max_response_length: 64
  train_batch_size: 4
  return_raw_chat: True

actor_rollout_ref:
  hybrid_engine: True
  rollout:
    name: sglang
    multi_turn:
      enable: True
      max_assistant_turns: {turns}
      format: hermes
"""

SCRIPT = """#!/usr/bin/env bash
# run on 8xH100; make sure your current working directory is the root of the project
set -xeuo pipefail

ulimit -n 65535

PROJECT_DIR="$(pwd)"
CONFIG_PATH="$PROJECT_DIR/config"
MODEL_PATH=${{MODEL_PATH:-./model}}
EXPERIMENT_NAME=${{EXPERIMENT_NAME:-{name}_$(date '+%d-%H-%M')}}

DATA=(
    algorithm.adv_estimator=grpo
    data.train_files="$PROJECT_DIR/{name}.jsonl"
    data.val_files=$PROJECT_DIR/{name}.jsonl   # the same
    data.filter_overlong_prompts=True
    data.truncation='error'
)

ACTOR=(
    actor_rollout_ref.model.path="$MODEL_PATH"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.5
    actor_rollout_ref.actor.ppo_mini_batch_size=2
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef=0.001
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.actor.entropy_coeff=0
    actor_rollout_ref.actor.fsdp_config.param_offload=False
)
EXTRA=(
)

python3 -m verl.trainer.main_ppo \\
    --config-path="$CONFIG_PATH" \\
    --config-name='{name}_multiturn_grpo' \\
    "${{DATA[@]}}" \\
    "${{ACTOR[@]}}" "${{EXTRA[@]}}" \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.n=2 \\
    algorithm.use_kl_in_reward=False \\
    trainer.critic_warmup=0 \\
    trainer.logger='["console","wandb"]' \\
    trainer.project_name='{name}_async_rl' \\
    trainer.experiment_name="${{EXPERIMENT_NAME}}" \\
    trainer.n_gpus_per_node=8 \\
    trainer.save_freq=-1 \\
    trainer.test_freq=20 \\
    trainer.rollout_data_dir="$PROJECT_DIR/dumps" \\
    actor_rollout_ref.rollout.multi_turn.tool_config_path="$PROJECT_DIR/config/tool_config/{name}_tool_config.yaml" \\
    trainer.total_epochs=15 "$@" 2>&1 | tee verl.log
"""

ANSWER_SCHEMA = """
    tool_schema:
      type: "function"
      function:
        name: "{name}"
        description: "A tool for calculating the reward. (1.0 if the answer is correct, 0.0 if it isn't)"
        parameters:
          type: "object"
          properties:
            answer:
              type: "string"
              description: "The model's answer to the problem, must be a digits"
          required: ["answer"]
"""

TOOLS = {
    "gsm8k": 'tools:\n  - class_name: "verl.tools.gsm8k_tool.Gsm8kTool"\n    config:\n      type: native'
    + ANSWER_SCHEMA.format(name="calc_gsm8k_reward"),
    "geo3k": 'tools:\n  - class_name: "verl.tools.geo3k_tool.Geo3kTool"\n    config: {}'
    + ANSWER_SCHEMA.format(name="calc_geo3k_reward"),
    "search": """
tools:
  - class_name: verl.tools.search_tool.SearchTool
    config:
      retrieval_service_url: ${oc.env:RETRIEVER,http://127.0.0.1:8000/retrieve}
      num_workers: 120
      rate_limit: 120
      timeout: 30
      type: native
    tool_schema:
      type: function
      function:
        name: search
        description: Searches the web for relevant information based on the given query.
        parameters:
          type: object
          properties:
            query_list:
              type: array
              items:
                type: string
              description: A list of fully-formed semantic queries.
          required:
            - query_list
""",
    "sandbox": """
tools:
  - class_name: "verl.tools.sandbox_fusion_tools.SandboxFusionTool"
    config:
      sandbox_fusion_url: "${SANDBOX}"
      num_workers: 10
      rate_limit: 10
      default_timeout: 30
      default_language: "python"
      memory_limit_mb: 1024
      type: sandbox_fusion
    tool_schema:
      type: "function"
      function:
        name: "code_interpreter"
        description: "A tool for executing code."
        parameters:
          type: "object"
          properties:
            code:
              type: "string"
              description: "The code to execute."
          required: ["code"]
""",
}
TURNS = {"gsm8k": 5, "geo3k": 5, "search": 2, "sandbox": 5}
SOURCES = {"gsm8k": "openai/gsm8k", "geo3k": "hiyouga/geometry3k", "search": "openai/gsm8k", "sandbox": "openai/gsm8k"}
KWARGS: dict[str, Any] = {
    "gsm8k": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "4"}}},
    "geo3k": {"calc_geo3k_reward": {"create_kwargs": {"ground_truth": "4"}}},
    "search": {"search": {"create_kwargs": {"ground_truth": "4", "question": "?", "data_source": "searchR1_nq"}}},
    "sandbox": {"code_interpreter": {"create_kwargs": {"ground_truth": "4"}}},
}


def write_guide(folder: Path, name: str, rows: int = 10) -> Path:
    """A guide's files; its start script."""
    config = folder / "config"
    (config / "tool_config").mkdir(parents=True, exist_ok=True)
    (config / f"{name}_multiturn_grpo.yaml").write_text(HYDRA.format(turns=TURNS[name]))
    (config / "tool_config" / f"{name}_tool_config.yaml").write_text(TOOLS[name])
    row = {
        "data_source": SOURCES[name],
        "agent_name": "tool_agent",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"need_tools_kwargs": True, "tools_kwargs": KWARGS[name], "split": "train", "index": 0},
    }
    (folder / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * rows)
    script = folder / f"run_{name}.sh"
    script.write_text(SCRIPT.format(name=name))
    return script
