"""The policy loss and its gradients against those of TRL's GRPOTrainer, on the same batch, in float32.

    pytest -rP tests/benchmarks/test_trl_loss.py               # prints the errors of each case

Both sides start from one folder with a small random Qwen3. TRL's side is the trainer itself: its own `compute_loss` on
inputs as it makes them for itself (left-padded prompts, right-padded completions, a tool mask inside the completions),
with one or two accumulation steps. Our side goes the way of a training step: samples, packing into micro-batches under
a small token budget, selected log-probabilities, the normalised loss. The completions have several turns with tool
tokens between them; prompts and completions differ in length; the temperature is 0.9.

The error is that of all parameters' gradients: the greatest difference divided by the greatest gradient of TRL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.batch import Sample, pack
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.objective.loss import LossStatistics, Normaliser, policy_loss

trl: Any = pytest.importorskip("trl", reason="the comparison needs TRL: pip install 'trl>=1.16'")

TOLERANCE = 1e-5
TEMPERATURE = 0.9
VOCABULARY = 512
LONGEST = 64
"""TRL's max_completion_length, which dr_grpo divides by."""

AGGREGATIONS = {"grpo": "sequence_mean", "dapo": "token_mean", "cispo": "token_mean", "dr_grpo": "constant"}


@dataclass(frozen=True)
class Case:
    """One comparison."""

    loss: str
    """TRL's loss_type."""
    kl: float = 0.0
    correction: bool = True
    """Of the KL term by the ratio; TRL's use_bias_correction_kl, whose default is on."""
    off_policy: bool = False
    """The old log-probabilities differ from the policy's, so that ratios are clipped."""
    accumulate: int = 1
    """TRL's gradient accumulation steps."""
    entropy: float = 0.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    """TRL's epsilon_high, but for cispo, where that is 1 + this."""
    clip_dual: float | None = None
    """TRL's delta."""
    ratio: Literal["token", "sequence"] = "token"
    """TRL's importance_sampling_level; GSPO with `sequence`."""

    @property
    def algorithm(self) -> AlgorithmConfig:
        return AlgorithmConfig(
            surrogate="cispo" if self.loss == "cispo" else "clip",
            ratio=self.ratio,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            clip_dual=self.clip_dual,
            kl_coef=self.kl,
            kl_correction=self.correction,
            entropy_coef=self.entropy,
        )


CASES = [
    *(Case(loss, kl, off_policy=off) for loss in ("grpo", "dapo") for kl in (0.0, 0.04) for off in (False, True)),
    *(Case(loss, 0.04, off_policy=off, correction=False) for loss in ("grpo", "dapo") for off in (False, True)),
    Case("grpo", 0.04, off_policy=True, accumulate=2),
    Case("dapo", 0.04, off_policy=True, accumulate=2, clip_high=0.28),
    Case("dapo", off_policy=True, entropy=0.01),
    Case("dr_grpo", 0.04, off_policy=True),
    *(Case("grpo", 0.0, off_policy=off, ratio="sequence", clip_low=3e-4, clip_high=4e-4) for off in (False, True)),
    Case("cispo", 0.04, off_policy=True, clip_low=1.0, clip_high=0.1),
    Case("cispo", off_policy=True, accumulate=2, clip_low=1.0, clip_high=0.1),
    Case("grpo", off_policy=True, clip_dual=1.3),
]


@dataclass(frozen=True)
class Data:
    """A step's episodes, as lists of tokens."""

    prompts: list[list[int]]
    completions: list[list[int]]
    sampled: list[list[int]]
    """1 on the completions' sampled tokens, 0 on those of tools."""
    advantages: list[float]
    reference: list[list[float]]
    """Log-probabilities of the completions' tokens."""
    old: list[list[float]]


def write_model(folder: Path) -> None:
    """A random Qwen3 and a tokenizer."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config)
    with torch.no_grad():  # Larger weights: predictions that differ from token to token.
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(4.0)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w3"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w2")
    tokenizer.save_pretrained(folder)


def make_data(episodes: int = 8, seed: int = 0) -> Data:
    """Episodes of two or three turns; every length differs."""
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=draw))

    data = Data([], [], [], [], [], [])
    for index in range(episodes):
        mask: list[int] = []
        for turn in range(number(2, 4)):
            mask += [0] * (number(3, 9) if turn else 0) + [1] * number(4, 12)
        data.prompts.append([number(3, VOCABULARY) for _ in range(12 + index)])
        data.completions.append([number(3, VOCABULARY) for _ in mask])
        data.sampled.append(mask)
        data.advantages.append(float(torch.randn((), generator=draw)))
    return data


def add_logprobs(data: Data, folder: Path) -> None:
    """Old log-probabilities: the policy's with noise. Reference: those of a model with other weights."""
    noise = torch.Generator().manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for target, change in ((data.old, 0.0), (data.reference, 0.02)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(change * torch.randn(parameter.shape, generator=noise))
        scorer = TokenScorer(model)
        for prompt, completion in zip(data.prompts, data.completions, strict=True):
            ids = torch.tensor([prompt + completion])
            mask = torch.tensor([[False] * len(prompt) + [True] * len(completion)])
            with torch.no_grad():
                scored = scorer(ids, torch.ones_like(ids), mask, temperature=TEMPERATURE).logprobs_BT
            target.append(scored[0, len(prompt) :].tolist())
    for logprobs in data.old:
        logprobs[:] = (torch.tensor(logprobs) + 0.3 * torch.randn(len(logprobs), generator=noise)).tolist()


def _gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def our_step(case: Case, data: Data, folder: Path) -> tuple[float, dict[str, torch.Tensor], dict[str, float]]:
    """Loss, gradients and metrics of one training step, in several micro-batches."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    scorer = TokenScorer(model)
    samples, extra = [], []
    for index, (prompt, completion) in enumerate(zip(data.prompts, data.completions, strict=True)):
        nothing = [0] * len(prompt)
        mask = nothing + data.sampled[index]
        advantages = [data.advantages[index] * sampled for sampled in mask]
        samples.append(Sample(prompt + completion, mask, nothing + data.old[index], advantages))
        extra.append(nothing + data.reference[index])
    batches = pack(samples, budget=160)
    assert len(batches) > 1
    trained = [count for batch in batches for count in batch.loss_mask_BT.sum(1).tolist()]
    normaliser = Normaliser.of(trained, AGGREGATIONS[case.loss], length=LONGEST)
    total, statistics = 0.0, LossStatistics()
    for batch in batches:
        scored = scorer(
            batch.input_ids_BT,
            batch.attention_mask_BT,
            batch.loss_mask_BT,
            temperature=TEMPERATURE,
            entropy=bool(case.entropy),
        )
        reference_BT = torch.zeros_like(scored.logprobs_BT)
        for row, index in enumerate(batch.samples):
            length = min(len(extra[index]), reference_BT.shape[1])
            reference_BT[row, :length] = torch.tensor(extra[index][:length])
        loss, part = policy_loss(
            scored.logprobs_BT,
            batch.advantages_BT,
            batch.loss_mask_BT,
            normaliser,
            case.algorithm,
            old_logprobs_BT=batch.rollout_logprobs_BT if case.off_policy else None,
            reference_logprobs_BT=reference_BT if case.kl else None,
            entropy_BT=scored.entropy_BT,
        )
        loss.backward()
        total += loss.item()
        statistics.add(part)
    return total, _gradients(model), statistics.metrics()


def _padded(rows: Sequence[Sequence[float]], *, left: bool = False, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    longest = max(map(len, rows))
    padded = torch.zeros(len(rows), longest, dtype=dtype)
    for row, values in enumerate(rows):
        where = slice(longest - len(values), None) if left else slice(0, len(values))
        padded[row, where] = torch.tensor(values, dtype=dtype)
    return padded


def trl_inputs(case: Case, data: Data) -> dict[str, torch.Tensor]:
    """What GRPOTrainer hands to its own compute_loss."""
    ones = [[1] * len(row) for row in data.completions]
    inputs = {
        "prompt_ids": _padded(data.prompts, left=True),
        "prompt_mask": _padded([[1] * len(row) for row in data.prompts], left=True),
        "completion_ids": _padded(data.completions),
        "completion_mask": _padded(ones),
        "tool_mask": _padded(data.sampled),
        "advantages": torch.tensor(data.advantages),
        "num_items_in_batch": torch.tensor(sum(map(sum, data.sampled))),
    }
    if case.off_policy:
        inputs["old_per_token_logps"] = _padded(data.old, dtype=torch.float32)
    if case.kl:
        inputs["ref_per_token_logps"] = _padded(data.reference, dtype=torch.float32)
    return inputs


def make_trl_trainer(case: Case, folder: Path, output: Path) -> Any:
    """The peer's trainer, as a user would make it."""
    from datasets import Dataset

    arguments = trl.GRPOConfig(
        output_dir=str(output), loss_type=case.loss, beta=case.kl, use_bias_correction_kl=case.correction,
        epsilon=case.clip_low, epsilon_high=case.clip_high + (case.loss == "cispo"), delta=case.clip_dual,
        importance_sampling_level=case.ratio,
        entropy_coef=case.entropy, temperature=TEMPERATURE, max_completion_length=LONGEST, num_generations=8,
        per_device_train_batch_size=8 // case.accumulate, gradient_accumulation_steps=case.accumulate,
        steps_per_generation=case.accumulate, bf16=False, gradient_checkpointing=False, use_cpu=True,
        report_to=[], model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    return trl.GRPOTrainer(
        model=str(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["w5"] * 8}),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder),
    )


def trl_step(case: Case, data: Data, folder: Path, output: Path) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the peer's step."""
    trainer = make_trl_trainer(case, folder, output)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = case.accumulate
    inputs = trl_inputs(case, data)
    rows = len(data.prompts) // case.accumulate
    total = 0.0
    for start in range(0, len(data.prompts), rows):
        part = {name: value[start : start + rows] if value.ndim else value for name, value in inputs.items()}
        loss = trainer.compute_loss(trainer.model, part)
        loss.backward()
        total += loss.item()
    return total, _gradients(trainer.model)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("trl") / "model"
    write_model(folder)
    return folder


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_and_gradients_are_trls(case: Case, model: Path, tmp_path: Path) -> None:
    data = make_data()
    add_logprobs(data, model)
    ours, our_gradients, metrics = our_step(case, data, model)
    theirs, their_gradients = trl_step(case, data, model, tmp_path)
    assert our_gradients.keys() == their_gradients.keys()
    greatest = max(float(gradient.abs().max()) for gradient in their_gradients.values())
    difference = max(float((our_gradients[name] - gradient).abs().max()) for name, gradient in their_gradients.items())
    loss_error, clipped = abs(ours - theirs) / max(abs(theirs), 1e-12), metrics["clip/low"] + metrics["clip/high"]
    print(f"loss {ours:.8f}, error {loss_error:.1e}, of gradients {difference / greatest:.1e}, clipped {clipped:.1%}")
    assert difference / greatest <= TOLERANCE
    assert loss_error <= TOLERANCE
    assert (clipped > 0) == case.off_policy
