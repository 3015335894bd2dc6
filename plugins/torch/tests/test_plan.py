"""Planned bytes against those that a real update of the same shape allocates, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl.cli.main import main
from toolrl.errors import ConfigError
from toolrl_plugin_torch import logprob
from toolrl_plugin_torch.adapters.lora import LoraAdapter
from toolrl_plugin_torch.batch import Sample, pack
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.optimizer import PolicyOptimizer
from toolrl_plugin_torch.options import ModelConfig, OptimizerConfig
from toolrl_plugin_torch.plan import report
from toolrl_plugin_torch.plan.memory import GIB, Gpu
from toolrl_plugin_torch.plan.sizes import PolicySizes
from toolrl_plugin_torch.policy import model_settings
from toolrl_plugin_torch.prefixes.tree_attention import over_trees

TOKENS = 192
_BASE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6, "num_attention_heads": 8, "head_dim": 8,
    "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 512, "tie_word_embeddings": True,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SHAPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dense": ("qwen2", {**_BASE, "num_key_value_heads": 8}, {"dtype": "float32"}),
    "grouped, checkpointing": ("qwen3", _BASE, {"dtype": "bfloat16", "gradient_checkpointing": True}),
    "untied": ("llama", {**_BASE, "tie_word_embeddings": False}, {"dtype": "float32"}),
    "experts": ("qwen3_moe", {**_BASE, **_EXPERTS}, {"dtype": "bfloat16"}),
    "adapter": ("qwen3", _BASE, {"dtype": "float32", "lora": {"rank": 4}}),
}
_8B = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
       "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
       "tie_word_embeddings": False}  # fmt: skip


def _folder(path: Path, kind: str, shape: dict[str, Any]) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": kind, **shape}))
    return str(path)


@pytest.mark.parametrize("shape", SHAPES)
def test_planned_bytes_are_those_of_a_real_update(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, sizes, settings = SHAPES[shape]
    if "lora" in settings:
        pytest.importorskip("peft")
    monkeypatch.setattr(logprob, "_memory", lambda _: (2**16, 2**28))  # One device's chunks on both.
    config = ModelConfig(path=_folder(tmp_path / "model", kind, sizes), **settings)
    planned = PolicySizes(config, config.path, torch.device("cpu"))
    checkpointing = config.gradient_checkpointing is True
    passes = planned.passes(TOKENS - 1, checkpointing=checkpointing, shares=True, entropy=False)
    assert passes is not None

    loader, found = model_settings(config, config.path)
    model = loader.from_config(found, dtype=planned.dtype).train()
    if config.lora is not None:
        LoraAdapter.add(model, config.lora, "")
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer, score = PolicyOptimizer(model.named_parameters(), OptimizerConfig()), TokenScorer(model)
    ids = torch.randint(5, 500, (TOKENS,)).tolist()
    sample = Sample(ids, [0] + [1] * (TOKENS - 1), [0.0] * TOKENS, [1.0] * TOKENS)
    batch = pack([sample], TOKENS, share=True)[0]

    def update() -> None:
        with over_trees([model]):
            found = score(batch.input_ids_BT, batch.attention_mask_BT, batch.loss_mask_BT, tree=batch.tree)
            found.logprobs_BT.sum().backward()

    first, _ = _allocated(update)  # What stays of it are the sums of gradients.
    _, peak = _allocated(update)
    trained = {id(parameter): parameter.nbytes for parameter in model.parameters()}
    own = {parameter.data_ptr() for parameter in model.parameters()}
    states = [tensor.nbytes for tensor in optimizer.tensors().values() if tensor.data_ptr() not in own]

    assert planned.weights == pytest.approx(sum(trained.values()), rel=0.01)
    assert planned.optimizer == pytest.approx(sum(states), rel=0.01)
    assert planned.gradients == pytest.approx(first, rel=0.1)
    assert passes.peak == pytest.approx(peak, rel=0.1)


def _allocated(call: Any) -> tuple[int, int]:
    """Bytes that torch's allocator reports a call to leave behind, and the most at once."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return now, most


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Of a run with a model of 8 billion parameters, of which there is only the config.json."""
    model = _folder(tmp_path / "model", "qwen3", _8B)
    text = {"model": {"path": model}, "environments": {"default": {}}, "rollout": {"max_episode_tokens": 4096}}
    (tmp_path / "run.yaml").write_text(json.dumps(text))
    return str(tmp_path / "run.yaml")


def _plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = main(["plan", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_what_is_advised_fits(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, facts = _plan(capsys, config, "--gpu", "h200")
    assert (status, facts["fits"]) == (1, "no")
    # Two bytes of weights, twelve of AdamW's, four of gradients.
    state = [facts["parts_gib"][name] * GIB / facts["parameters"] for name in ("weights", "optimizer", "gradients")]
    assert state == pytest.approx([2, 12, 4], rel=0.01)
    changes = facts["advice"][0]["set"]
    words = [word for path, value in changes.items() for word in ("--set", f"{path}={json.dumps(value)}")]
    status, fitting = _plan(capsys, config, "--gpu", "h200", *words)
    assert (status, fitting["fits"], fitting["peak_gib"]) == (0, "yes", facts["advice"][0]["peak_gib"])


def test_ranks_share_a_long_sequence(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At the advised number of ranks to a micro-batch, each has its share of the activations."""
    words = ("--gpu", "h100:8", "--set", "rollout.max_episode_tokens=81920")
    status, whole = _plan(capsys, config, *words)
    assert (status, whole["fits"]) == (1, "no")
    size = whole["advice"][0]["set"]["trainer.sequence_parallel"]
    _, cut = _plan(capsys, config, *words, "--set", f"trainer.sequence_parallel={size}")
    assert (cut["fits"], cut["peak_gib"]) == ("yes", whole["advice"][0]["peak_gib"])
    assert cut["parts_gib"]["activations"] == pytest.approx(whole["parts_gib"]["activations"] / size, rel=0.05)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpu", "h20"), "'h20' is no GPU"),
        (("--gpu", "h200", "--set", "model.path=./missing"), "model.path"),
        (("--gpu", "h200", "--set", "cluster.trainer_workers=4"), "4 ranks"),
        (("--gpu", "h200:4", "--set", "trainer.sequence_parallel=3"), "3 doesn't divide the number of ranks, 4"),
        (("--gpu", "h200:2", "--set", "trainer.sequence_parallel=2", "--set", "algorithm.preset=ppo"), "a critic"),
    ],
)
def test_what_cannot_be_planned(
    words: tuple[str, ...], says: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", config, *words]) == 1
    assert says in capsys.readouterr().err


def _refusal(config: str, gib: float, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> str | None:
    from toolrl.building import engine_options
    from toolrl.config.load import load_config
    from toolrl.plugins.registry import load_registry

    registry = load_registry()
    loaded = load_config(config, overrides, registry=registry).config
    monkeypatch.setattr(report, "gpu_here", lambda _: Gpu("a GPU", int(gib * GIB)))
    engine = engine_options(registry, loaded)
    return report.refuse(loaded, loaded.model.path, engine, torch.device("cuda"), 1)


def test_train_refuses_what_can_not_fit_and_only_that(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="can't fit: update takes 137") as refused:  # 18 bytes a parameter
        _refusal(config, 130, monkeypatch)
    assert "It fits with" in str(refused.value.hint)
    # Activations and the cache depend on the episodes.
    assert "may not fit" in str(_refusal(config, 140, monkeypatch))
    assert _refusal(config, 400, monkeypatch) is None
    # A reference that waits on the CPU isn't there in the update.
    waits = ("algorithm.kl_coef=0.1", "trainer.offload=[reference]")
    assert "may not fit" in str(_refusal(config, 140, monkeypatch, *waits))
