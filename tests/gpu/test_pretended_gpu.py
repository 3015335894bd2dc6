"""What would break on a GPU and can be seen without one: tensors that stay on the wrong side, and how often a step
waits for the device. `pretend_gpu.py` says what is seen so, and what isn't."""

from __future__ import annotations

import random
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("toolrl_plugin_transformers")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from pretend_gpu import PretendGpu  # noqa: E402

from toolrl.types import Group, RewardEntry, Sampling  # noqa: E402
from toolrl_plugin_torch.algorithm import AlgorithmConfig  # noqa: E402
from toolrl_plugin_torch.options import TrainerConfig  # noqa: E402
from toolrl_plugin_torch.policy import PolicyModel  # noqa: E402
from toolrl_plugin_torch.prefixes.attention import tree_attention  # noqa: E402
from toolrl_plugin_torch.prefixes.tree import grow  # noqa: E402
from toolrl_plugin_torch.trainer import PolicyTrainer  # noqa: E402
from toolrl_plugin_transformers.batch import Batch  # noqa: E402
from toolrl_plugin_transformers.check import verify  # noqa: E402
from toolrl_plugin_transformers.model import ModelRunner  # noqa: E402
from toolrl_plugin_transformers.request import Request  # noqa: E402
from toolrl_plugin_transformers.sampling import Uniforms  # noqa: E402
from toolrl_testing.fakes import make_episode, make_task  # noqa: E402

GPU = torch.device("cuda")
SIZES = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": None,
    "eos_token_id": 1,
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]


def make_model(kind: str, dtype: Any) -> Any:
    torch.manual_seed(0)
    if kind == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True))
    else:
        window = 64 if kind == "window" else None
        model = transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES, sliding_window=window))
    return model.to(dtype)


def groups() -> list[Group]:
    """Two of four episodes each, with a prompt in common."""
    chance = random.Random(0)
    found = []
    for number in range(2):
        task, prompt = make_task(id=f"task-{number}"), [chance.randrange(96) for _ in range(60)]
        episodes = []
        for index in range(4):
            said = [chance.randrange(96) for _ in range(12 + 3 * index)]
            mask = (0,) * 60 + (1,) * len(said)
            episodes.append(
                make_episode(
                    task=task, index=index, rewards=[RewardEntry(None, "reward:x", float(index % 2))],
                    ids=(*prompt, *said), loss_mask=mask, logprobs=tuple(-4.0 * bit for bit in mask),
                    weight_versions=tuple(bit - 1 for bit in mask), prompt_length=60,
                )
            )  # fmt: skip
        found.append(Group(task.id, task, tuple(episodes)))
    return found


def test_attention_over_a_tree_is_a_packed_call_for_each_depth() -> None:
    """By operators that stand in for a GPU's, output and gradients are those of the kernel for CPUs."""
    system, prompt = list(range(40)), list(range(40, 80))
    ends = [[80 + 3 * number, *range(number, 2 * number)] for number in (5, 1, 9)]
    tree = grow([*([*system, *prompt, *end] for end in ends), [*system, *range(90, 50, -1)], [95] * 20])
    assert max(node.depth for node in tree.nodes) == 2
    chance = torch.Generator().manual_seed(0)
    tensors = [torch.randn(tree.positions, heads, 16, generator=chance).bfloat16() for heads in (4, 2, 2, 4)]
    found = []
    for mode, device in ((nullcontext(), torch.device("cpu")), (PretendGpu(), GPU)):
        with mode:
            *inputs, weights = (tensor.to(device) for tensor in tensors)
            inputs = [tensor.detach().requires_grad_() for tensor in inputs]
            out = tree_attention(*inputs, tree.to(device), 0.25)
            found.append([out, *torch.autograd.grad((out * weights).sum(), inputs)])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=0.02, atol=0.03)


@pytest.mark.parametrize("preset", ["grpo", "ppo"])
@pytest.mark.parametrize(
    ("dtype", "share"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)],
    ids=["float32", "bfloat16", "bfloat16 shared"],
)
def test_an_update_stays_on_the_device(dtype: Any, share: bool, preset: Any) -> None:
    model = make_model("qwen3", dtype)
    with PretendGpu() as gpu, tempfile.TemporaryDirectory() as folder:
        policy = PolicyModel(model.to(GPU), SimpleNamespace(pad_token_id=0), "made up", GPU, dtype)
        settings = TrainerConfig(steps=10, share_prefix=share, tokens_per_microbatch=150, updates_per_step=2)
        algorithm = AlgorithmConfig(preset=preset, kl_coef=0.1, entropy_coef=0.01)
        trainer = PolicyTrainer(policy, settings, algorithm, Path(folder), temperature=0.9, longest=32)
        metrics = trainer.update(groups())
        assert metrics["grad_norm"] > 0
        assert model.device.type == "cuda"
        # What a checkpoint gives back lies on the CPU.
        state = trainer.optimizer.state_dict()
        saved = torch.utils._pytree.tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, state)
        trainer.optimizer.load_state_dict(saved)
        gpu.waits.clear()
        trainer.update(groups())
        ours = {place: count for place, count in gpu.waits.items() if "masking_utils" not in place}
    # Passes over micro-batches wait for what the trained tokens are, and statistics once a step; no token by itself.
    assert sum(ours.values()) < 60, ours


@pytest.mark.parametrize("kind", ["qwen3", "phi3", "window"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_engine_stays_on_the_device_and_waits_for_its_tokens_alone(dtype: Any, kind: str) -> None:
    chance = random.Random(0)
    common = [chance.randrange(96) for _ in range(80)]
    with PretendGpu() as gpu, torch.no_grad():
        runner = ModelRunner(make_model(kind, dtype).to(GPU))
        verify(runner)
        assert runner.shape.device.type == "cuda"
        batch = Batch(runner, max_batch=6, prefill_tokens=64, cache_tokens=4000)
        for number in range(8):
            own = [chance.randrange(96) for _ in range(10 + 9 * number)]
            sampling = Sampling(
                6 + number, temperature=(0.0, 1.0, 0.7)[number % 3], top_p=0.9 if number % 4 == 0 else 1.0,
                top_k=5 if number % 5 == 0 else 0,
            )  # fmt: skip
            batch.add(Request(str(number), common + own if number % 2 else own, sampling, Uniforms(number)))
        gpu.waits.clear()
        draws = done = 0
        while not batch.idle:
            batch.runner.enter()
            before = batch.sampled
            done += len(batch.step())
            draws += batch.sampled > before
        batch.leave()
        assert done == 8
        assert batch.slots.slots == 0, "memory is kept while nothing is sampled"
        # Ids and log-probabilities, a step; one step may draw for new rows and for those there were.
        assert {place.split()[0] for place in gpu.waits} == {"tolist"}
        assert sum(gpu.waits.values()) <= 2 * 2 * draws + 8


def test_what_is_pretended() -> None:
    with PretendGpu() as gpu:
        layer, row = torch.nn.Linear(3, 3).to(GPU), torch.ones(2, 3)
        assert (layer.weight.device, row.device.type) == (torch.device("cuda", 0), "cpu")
        with pytest.raises(RuntimeError, match=r"tensors on cuda:0 and cpu meet, from test_pretended_gpu\.py:\d+"):
            layer(row)
        there = row.to(GPU)
        out = layer(there).sum()
        out.backward()
        assert layer.weight.grad.device.type == there.view(-1)[1:].device.type == "cuda"
        assert not gpu.waits
        assert out.detach().item() == float(out.detach())
        assert sum(gpu.waits.values()) == 2
