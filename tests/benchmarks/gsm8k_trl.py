"""The run of docs/examples/gsm8k/grpo.yaml with the calculator by TRL's GRPOTrainer: same start, prompts, sampling,
tool, reward and steps.

    python tests/benchmarks/gsm8k_trl.py MODEL GSM8K OUTPUT [--steps 20] [--prompts 16] [--threads 2]

MODEL is the folder that both start from, GSM8K the one with train.jsonl. OUTPUT gets `steps.jsonl`, a line a step with
the mean reward, the share of right answers, calls, sampled tokens and seconds, and checkpoints, from which the same
command goes on. TRL samples with transformers' `generate`, as toolrl does without a server; its weights are
float32, and it computes in bfloat16 (autocast), its default.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint
from trl.chat_template_utils import qwen3_template

from toolrl.protocols import BuildContext
from toolrl_plugin_calculator.evaluate import ExpressionEvaluator
from toolrl_plugin_calculator.tool import build
from toolrl_plugin_chat.preamble import preamble
from toolrl_plugin_math.gsm8k import Gsm8k
from toolrl_plugin_math.options import Gsm8kDataOptions
from toolrl_plugin_math.quantity import last_number, marked_number, stated_number

GROUP, TURNS, RATE, TEMPERATURE, MICROBATCH = 8, 8, 2e-5, 0.7, 4
TURN_TOKENS, EPISODE_TOKENS = 256, 768
SYSTEM = "You solve problems step by step. Use the calculator for every calculation."
TEMPLATE = r"""\
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else -%}
<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] -%}
{{ '\n' if message.content or not loop.first }}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: The expression.
    """
    try:
        return ExpressionEvaluator()(expression)
    except Exception as error:  # noqa: BLE001 - the model is told, as toolrl does
        return f"error: {error}"


def score(completions: list[list[dict[str, Any]]], answer: list[str], **_: Any) -> list[float]:
    """1 for the right number at the end of the final message."""
    rewards = []
    for completion, gold in zip(completions, answer, strict=True):
        final = completion[-1]
        text = final.get("content") or "" if final["role"] == "assistant" else ""
        marked = marked_number(text)
        said = marked if marked is not None else last_number(text)
        rewards.append(float(said is not None and said == stated_number(gold)))
    return rewards


def rows(folder: str) -> Dataset:
    """The prompts as toolrl lays them out, the description of the tool in the system message."""
    context = BuildContext(name="gsm8k")
    tasks = Gsm8k(Gsm8kDataOptions(path=folder, split="train"), context)
    system = f"{SYSTEM}\n\n{preamble([build(None, context).spec], 'short')}"
    return Dataset.from_list(
        [
            {
                "prompt": [
                    {"role": "system", "content": system},
                    {"role": "user", "content": task.messages[-1].content},
                ],
                "answer": str(task.answer),
            }
            for task in map(tasks.__getitem__, range(len(tasks)))
        ]
    )


class Steps(transformers.TrainerCallback):
    """Writes a line a step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs is None or "reward" not in logs:
            return
        line = {"step": state.global_step, "seconds": time.perf_counter() - self._began, **logs}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=16, help="prompts of a step; each is answered eight times")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, qwen3_template
    arguments = trl.GRPOConfig(
        output_dir=str(options.output), seed=options.seed, max_steps=options.steps, use_cpu=True, bf16=True,
        loss_type="dapo", epsilon=0.2, epsilon_high=0.28, beta=0.0, temperature=TEMPERATURE, top_p=1.0, top_k=0,
        learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=1.0, adam_beta2=0.95,
        num_generations=GROUP, per_device_train_batch_size=MICROBATCH,
        gradient_accumulation_steps=options.prompts * GROUP // MICROBATCH,
        max_completion_length=EPISODE_TOKENS, max_tool_calling_iterations=TURNS - 1,
        generation_kwargs={"max_new_tokens": TURN_TOKENS},
        gradient_checkpointing=False, logging_steps=1, save_steps=1, save_total_limit=1, report_to=[],
        disable_tqdm=True,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=options.model, reward_funcs=score, args=arguments, train_dataset=rows(options.data),
        processing_class=tokenizer, tools=[calculator], callbacks=[Steps(options.output / "steps.jsonl")],
    )  # fmt: skip
    options.output.mkdir(parents=True, exist_ok=True)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(options.output)))


if __name__ == "__main__":
    main()
