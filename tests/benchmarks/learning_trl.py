"""A run of docs/examples/gsm8k/grpo.yaml with the calculator, or of docs/examples/two-hop/grpo.yaml, by TRL's
GRPOTrainer: same start, prompts, sampling, tool, reward and rate.

    python tests/benchmarks/learning_trl.py gsm8k MODEL data/gsm8k OUTPUT [--steps 20] [--prompts 16] [--threads 2]
    python tests/benchmarks/learning_trl.py two-hop MODEL runs/two-hop OUTPUT

MODEL is the folder that both start from. The next argument is the folder with GSM8K's train.jsonl, or with the folders
`world` and `index` of the example. OUTPUT gets `steps.jsonl`, a line a step with the mean reward, calls, tokens and
seconds, and checkpoints, from which the same command goes on. TRL samples with transformers' `generate`, as toolrl
does without a server; its weights are float32, and it computes in bfloat16 (autocast), its default.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint
from trl.chat_template_utils import qwen3_template

from toolrl.protocols import BuildContext
from toolrl.types import ToolCall, ToolSpec
from toolrl_plugin_calculator.evaluate import ExpressionEvaluator
from toolrl_plugin_calculator.tool import build
from toolrl_plugin_chat.preamble import preamble
from toolrl_plugin_math.gsm8k import Gsm8k
from toolrl_plugin_math.options import Gsm8kDataOptions
from toolrl_plugin_math.quantity import last_number, marked_number, stated_number
from toolrl_plugin_search.options import SearchOptions
from toolrl_plugin_search.tool import make_search

GROUP = 8
CONTEXT = BuildContext(name="benchmark")
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


@dataclass(frozen=True)
class Task:
    """What differs between the two runs."""

    system: str
    spec: ToolSpec
    tool: Callable[..., str]
    right: Callable[[str, str], bool]
    """Whether the final message has the answer."""
    prompts: list[tuple[str, str]]
    """The user's messages with their answers."""
    temperature: float
    rate: float
    turns: int
    turn_tokens: int
    episode_tokens: int
    microbatch: int

    def rows(self) -> Dataset:
        """The prompts as toolrl lays them out, the description of the tool in the system message."""
        system = {"role": "system", "content": f"{self.system}\n\n{preamble([self.spec], 'short')}"}
        return Dataset.from_list(
            [{"prompt": [system, {"role": "user", "content": text}], "answer": answer} for text, answer in self.prompts]
        )

    def score(self, completions: list[list[dict[str, Any]]], answer: list[str], **_: Any) -> list[float]:
        """1 for the right answer in the final message."""
        finals = [completion[-1] for completion in completions]
        texts = [final.get("content") or "" if final["role"] == "assistant" else "" for final in finals]
        return [float(self.right(text, gold)) for text, gold in zip(texts, answer, strict=True)]


def gsm8k(folder: str) -> Task:
    def calculator(expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: The expression.
        """
        try:
            return ExpressionEvaluator()(expression)
        except Exception as error:  # noqa: BLE001 - the model is told, as toolrl does
            return f"error: {error}"

    def right(text: str, gold: str) -> bool:
        marked = marked_number(text)
        said = marked if marked is not None else last_number(text)
        return said is not None and said == stated_number(gold)

    tasks = Gsm8k(Gsm8kDataOptions(path=folder, split="train"), CONTEXT)
    prompts = [(task.messages[-1].content, str(task.answer)) for task in map(tasks.__getitem__, range(len(tasks)))]
    system = "You solve problems step by step. Use the calculator for every calculation."
    return Task(system, build(None, CONTEXT).spec, calculator, right, prompts, 0.7, 2e-5, 8, 256, 768, 4)


def two_hop(folder: str) -> Task:
    toolset, loop = make_search(SearchOptions(index=f"{folder}/index", topk=1), CONTEXT), asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()  # TRL calls tools inside of a loop of its own.
    asyncio.run_coroutine_threadsafe(toolset.start(), loop).result()

    def search(query: str) -> str:
        """Search a collection of passages.

        Args:
            query: What to look for.
        """
        call = toolset.call(ToolCall("search", {"query": query}, "1"))
        return asyncio.run_coroutine_threadsafe(call, loop).result().text

    lines = Path(folder, "world", "train.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [(row["messages"][-1]["content"], row["answer"]) for row in map(json.loads, lines)]
    system = "You answer questions about companies and people."
    return Task(
        system, toolset.spec, search, lambda text, gold: text.strip() == gold, prompts, 1.0, 1e-5, 5, 48, 384, 16
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
    parser.add_argument("task", choices=("gsm8k", "two-hop"))
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=16, help="prompts of a step; each is answered eight times")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    task = gsm8k(options.data) if options.task == "gsm8k" else two_hop(options.data)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, qwen3_template
    episodes = options.prompts * GROUP
    microbatch = min(task.microbatch, episodes)
    arguments = trl.GRPOConfig(
        output_dir=str(options.output), seed=options.seed, max_steps=options.steps, use_cpu=True, bf16=True,
        loss_type="dapo", epsilon=0.2, epsilon_high=0.28, beta=0.0, temperature=task.temperature, top_p=1.0, top_k=0,
        learning_rate=task.rate, lr_scheduler_type="constant", max_grad_norm=1.0, adam_beta2=0.95,
        num_generations=GROUP, per_device_train_batch_size=microbatch,
        gradient_accumulation_steps=episodes // microbatch,
        max_completion_length=task.episode_tokens, max_tool_calling_iterations=task.turns - 1,
        generation_kwargs={"max_new_tokens": task.turn_tokens},
        gradient_checkpointing=False, logging_steps=1, save_steps=1, save_total_limit=1, report_to=[],
        disable_tqdm=True,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=options.model, reward_funcs=task.score, args=arguments, train_dataset=task.rows(),
        processing_class=tokenizer, tools=[task.tool], callbacks=[Steps(options.output / "steps.jsonl")],
    )  # fmt: skip
    options.output.mkdir(parents=True, exist_ok=True)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(options.output)))


if __name__ == "__main__":
    main()
