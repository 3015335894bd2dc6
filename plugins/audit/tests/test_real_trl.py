"""Files that TRL's own GRPOTrainer writes: with and without tools, clean ones and broken ones."""

from __future__ import annotations

import pydoc_data.topics
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import transformers
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from trl import GRPOConfig, GRPOTrainer

from toolrl_plugin_audit.command import audit

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def correct(completions: list[Any], answer: list[int], **_: Any) -> list[float]:
    return [float(str(right) in str(text[-1]["content"])) for text, right in zip(completions, answer, strict=True)]


def make_tokenizer() -> Any:
    from trl.chat_template_utils import qwen2_5_chat_template as template

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*list(pydoc_data.topics.topics.values())[:20], *[template] * 12], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=template
    )


class Scripted(GRPOTrainer):
    """TRL's trainer over a model that says what it is told: its loop of tools, rewards and files are TRL's own."""

    turn = 0

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **settings: Any) -> tuple[Any, Any]:
        texts = []
        for ids in prompt_ids:
            self.turn += 1
            said = self.processing_class.decode(ids)
            a, b = re.findall(r"What is (\d+) plus (\d+)", said)[-1]
            called = said.rstrip().endswith("assistant") and "<tool_response>\n" in said.rpartition("plus")[2]
            call = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
            texts.append(
                f"It is {int(a) + int(b) if self.turn % 2 else 'unknown'}." if called or not self.tools else call
            )
        ids = [self.processing_class.encode(text + "<|im_end|>", add_special_tokens=False) for text in texts]
        return ids, None


def train(folder: Path, trainer: type[GRPOTrainer] = Scripted, **settings: Any) -> Path:
    """Two steps of GRPO, and the folder of its completions."""
    tokenizer = make_tokenizer()
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=4096, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    questions = [(3, 4), (5, 9), (8, 8), (2, 7)]
    rows = [{"prompt": [{"role": "user", "content": f"What is {a} plus {b}?"}], "answer": a + b} for a, b in questions]
    rewards = settings.pop("reward_funcs", [correct])
    tools = settings.pop("tools", None)
    arguments = GRPOConfig(
        output_dir=str(folder), max_steps=2, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=256, log_completions=True, logging_steps=1, save_strategy="no",
        report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, **settings,
    )  # fmt: skip
    trainer(
        model=transformers.Qwen2ForCausalLM(config), reward_funcs=rewards, args=arguments,
        train_dataset=Dataset.from_list(rows), processing_class=tokenizer, tools=tools,
    ).train()  # fmt: skip
    return folder / "completions"


def test_what_trl_writes(tmp_path: Path) -> None:
    """Clean with tools, without, and with several rewards, of which one doesn't score each row."""

    def length(completions: list[Any], **_: Any) -> list[float | None]:
        return [None if number % 3 == 0 else float(number % 2) for number, _ in enumerate(completions)]

    report = audit(train(tmp_path / "tools", tools=[add]))
    assert (report.rows, report.findings) == (16, [])
    assert report.checks["advantages"].rows == 16
    for name, settings in (("plain", {}), ("two", {"reward_funcs": [correct, length], "scale_rewards": "batch"})):
        report = audit(train(tmp_path / name, **settings))
        assert (report.rows, report.findings) == (16, []), name


def test_advantages_that_trl_writes_without_a_number(tmp_path: Path) -> None:
    """A reward function that gives NaN makes TRL's advantages NaN, which its files hold as null."""

    def broken(completions: list[Any], **_: Any) -> list[float]:
        return [float("nan")] * len(completions)

    report = audit(train(tmp_path, reward_funcs=[broken]))
    assert {finding.check for finding in report.findings} >= {"rewards"}
    assert "no reward function scored it" in report.findings[0].examples[0]["text"]

    class Infinite(Scripted):
        def log(self, *args: Any, **settings: Any) -> None:
            self._logs["advantages"].extend([float("nan")] * len(self._logs["advantages"]))
            super().log(*args, **settings)

    report = audit(train(tmp_path / "nan", Infinite))
    (finding,) = report.findings
    assert (finding.check, finding.count) == ("advantages", report.rows)


def test_a_trainer_that_is_wrong(tmp_path: Path) -> None:
    """TRL's own loop with rewards that reach the wrong rollouts."""

    class Shifts(Scripted):
        def log(self, *args: Any, **settings: Any) -> None:
            self._logs["advantages"].rotate(1)
            super().log(*args, **settings)

    report = audit(train(tmp_path, Shifts))
    assert {finding.check for finding in report.findings} == {"advantages"}
