"""LoRA: what is trained, what is shared, what is merged, and what a checkpoint brings back."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import CheckpointError, ConfigError, ToolrlError
from toolrl_plugin_torch.adapters.lora import LoraAdapter
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration
from toolrl_plugin_torch.loop.batches import FixedRows
from toolrl_plugin_torch.loop.saver import Saver
from toolrl_plugin_torch.options import LoraConfig, SftConfig
from toolrl_plugin_torch.policy import PolicyModel, PolicyWeights
from toolrl_plugin_torch.probe import digests
from toolrl_plugin_torch.trainer import SupervisedTrainer

peft = pytest.importorskip("peft", reason="adapters need peft: pip install toolrl[lora]")

BATCH = [Demonstration((5, 6, 7, 8, 9, 10), (0, 0, 1, 1, 0, 1)), Demonstration((5, 6, 7, 6), (0, 0, 1, 1))]


@pytest.fixture(params=["qwen3", "llama"])
def folder(request: pytest.FixtureRequest, tiny: Any, tmp_path: Path) -> Path:
    """A model's folder: one with a tied head, one without."""
    return tiny.save(tmp_path / "model", request.param)  # type: ignore[no-any-return]


def adapted(tiny: Any, folder: Path, lora: dict[str, Any] | None = None, **fields: Any) -> PolicyModel:
    """A policy whose adapter isn't zero any more."""
    policy = tiny.load(folder, lora or {"rank": 4}, **fields)
    assert policy.adapter is not None
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in policy.adapter.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.05)
    return policy


def saved(policy: PolicyModel, tmp_path: Path) -> Path:
    """The folder of its adapter, without a tokenizer, as many adapters come."""
    folder = tmp_path / "saved"
    folder.mkdir()
    assert policy.adapter is not None
    policy.adapter.save_pretrained(folder)
    return folder


def trained_names(model: Any) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_a_new_adapter_changes_nothing_and_alone_is_trained(tiny: Any, folder: Path) -> None:
    whole, policy = tiny.load(folder), tiny.load(folder, {"rank": 4})
    assert type(policy.model) is type(whole.model)
    assert tiny.logits(policy.model).equal(tiny.logits(whole.model))
    names = trained_names(policy.model)
    assert names
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert not any("lm_head" in name for name in names)
    shapes = {tuple(p.shape) for n, p in policy.model.named_parameters() if n.endswith("q_proj.lora_A.default.weight")}
    assert shapes == {(4, 32)}
    assert trained_names(tiny.load(folder, {"target_modules": ["q_proj"]}).model) < names


def test_training_leaves_the_weights_of_the_model_alone(tiny: Any, folder: Path, tmp_path: Path) -> None:
    policy = tiny.load(folder, {"rank": 4})
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    trainer = tiny.fine_tuner(tmp_path, policy, learning_rate=1e-2, weight_decay=0.1)
    losses = [trainer.update(BATCH)["loss"] for _ in range(8)]
    assert losses[-1] < losses[0]
    changed = {name for name, p in policy.model.named_parameters() if not p.equal(before[name])}
    assert changed == trained_names(policy.model)
    names = trainer.optimizer.state_dict()["names"]
    assert set(names) == changed, "no average is kept of what isn't trained"


def test_merged_weights_compute_the_same(tiny: Any, folder: Path) -> None:
    policy = adapted(tiny, folder, {"rank": 4, "alpha": 6})
    wanted = tiny.logits(policy.model)
    assert not torch.allclose(wanted, tiny.logits(tiny.load(folder).model), atol=1e-2), "the adapter does something"
    weights = PolicyWeights(policy, 0)
    plain = transformers.AutoModelForCausalLM.from_pretrained(weights.path())
    assert torch.allclose(tiny.logits(plain), wanted, atol=1e-4)
    assert set(policy.state_dict()) == set(plain.state_dict())
    plain.load_state_dict(dict(weights.tensors()), strict=False)
    assert torch.allclose(tiny.logits(plain), wanted, atol=1e-4)
    weights.close()


def test_digests_are_of_all_but_merged_tensors_under_other_names_too() -> None:
    text = {"model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
              "num_attention_heads": 2, "image_size": 16, "patch_size": 4, "projection_dim": 16}  # fmt: skip
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=290)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    policy = PolicyModel(model, None, "", torch.device("cpu"), torch.float32)
    policy.adapter = LoraAdapter.add(model, LoraConfig(rank=2), "")
    with torch.no_grad():
        for tensor in policy.adapter.state_dict().values():
            tensor.add_(0.1)
    weights = policy.weights(0)
    merged, found = digests(weights.tensors()), weights.digests()
    assert 0 < len(found) < len(merged)
    assert {name: merged[name] for name in found} == found


def test_merging_in_bfloat16_rounds_once(tiny: Any, tmp_path: Path) -> None:
    policy = adapted(tiny, tiny.save(tmp_path / "model", dtype="bfloat16"), dtype="bfloat16")
    name = "model.layers.0.mlp.down_proj"
    layer = policy.model.get_submodule(name)
    low, high = (getattr(layer, part)["default"].weight for part in ("lora_A", "lora_B"))
    assert low.dtype == torch.bfloat16
    exact = layer.base_layer.weight.double() + 32 / 4 * high.double() @ low.double()
    merged = policy.state_dict()[f"{name}.weight"]
    assert merged.dtype == torch.bfloat16
    assert (merged.double() - exact).abs().max() <= exact.abs().max() / 2**8
    assert (merged == exact.float().bfloat16()).float().mean() > 0.99


def test_conv1d_layers_keep_their_weights_the_other_way_round(tiny: Any, tmp_path: Path) -> None:
    policy = adapted(tiny, tiny.save(tmp_path / "model", "gpt2"))
    plain = tiny.model("gpt2")
    plain.load_state_dict(dict(policy.state_dict()))
    assert torch.allclose(tiny.logits(plain.eval()), tiny.logits(policy.model.eval()), atol=1e-4)


def test_transformers_and_peft_load_what_is_saved(tiny: Any, folder: Path, tmp_path: Path) -> None:
    policy = adapted(tiny, folder)
    path = saved(policy, tmp_path)
    wanted = tiny.logits(policy.model)
    assert tiny.logits(transformers.AutoModelForCausalLM.from_pretrained(path)).equal(wanted)
    assert tiny.logits(peft.AutoPeftModelForCausalLM.from_pretrained(path)).equal(wanted)
    settings = json.loads((path / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(folder)
    assert settings["target_modules"] == sorted(settings["target_modules"])


def test_an_adapters_folder_is_trained_on_or_merged_in(tiny: Any, folder: Path, tmp_path: Path) -> None:
    policy = adapted(tiny, folder, {"rank": 4, "alpha": 6})
    path = saved(policy, tmp_path)
    again = tiny.load(path, {"rank": 4, "alpha": 6})
    assert tiny.logits(again.model).equal(tiny.logits(policy.model))
    assert trained_names(again.model) == trained_names(policy.model)
    assert again.adapter is not None
    assert again.adapter.base == str(folder)
    merged = tiny.load(path)
    assert merged.adapter is None
    assert torch.allclose(tiny.logits(merged.model), tiny.logits(policy.model), atol=1e-4)
    assert trained_names(merged.model) == trained_names(tiny.load(folder).model)


def test_an_adapter_of_another_kind_is_merged_as_peft_does(tiny: Any, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model")
    options = peft.LoraConfig(r=4, use_dora=True, target_modules=["q_proj"], task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(folder), options)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    wrapped.save_pretrained(tmp_path / "dora")
    policy = tiny.load(tmp_path / "dora")
    assert torch.allclose(tiny.logits(policy.model), tiny.logits(wrapped), atol=1e-4)
    assert not torch.allclose(tiny.logits(policy.model), tiny.logits(tiny.load(folder).model), atol=1e-2)


@pytest.mark.parametrize("other", [{"rank": 8}, {"alpha": 3}, {"target_modules": ["q_proj"]}])
def test_another_adapter_is_refused(tiny: Any, tmp_path: Path, other: dict[str, Any]) -> None:
    policy = adapted(tiny, tiny.save(tmp_path / "model"), {"rank": 4})
    path = saved(policy, tmp_path)
    with pytest.raises(ToolrlError, match=r"rank 4, alpha 32.* isn't that of model.lora") as caught:
        tiny.load(path, {"rank": 4, **other})
    assert "leave model.lora out" in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "problem"),
    [
        (["nope"], "'nope' names no layer"),
        (["embed_tokens"], "is of class Embedding"),
        (["lm_head"], "shares its weight with the input embeddings"),
        ("[", "unterminated character set"),
    ],
)
def test_targets_that_can_not_be_are_refused(tiny: Any, tmp_path: Path, targets: Any, problem: str) -> None:
    folder = tiny.save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"model\.lora\.target_modules") as caught:
        tiny.load(folder, {"target_modules": targets})
    assert problem in str(caught.value)
    assert "base_layer" not in str(caught.value)


# The trainer.


REWARDS = (0.0, 1.0, 1.0, 0.0)


def test_the_reference_is_the_model_without_the_adapter_and_no_second_copy(tiny: Any, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model")
    policy = tiny.load(folder, {"rank": 4})
    trainer = tiny.trainer(tmp_path, policy, {"preset": "grpo", "kl_coef": 0.1}, learning_rate=1e-2)
    for seed in range(3):
        metrics = trainer.update([tiny.group(REWARDS, seed)])
    assert metrics["kl"] > 0
    assert tiny.logits(trainer.reference).equal(tiny.logits(tiny.load(folder).model))
    assert not tiny.logits(policy.model).equal(tiny.logits(trainer.reference))
    live = dict(policy.model.named_parameters())
    assert {type(part) for part in trainer.reference.modules()} == {
        type(part) for part in tiny.load(folder).model.modules()
    }
    for name, parameter in trainer.reference.named_parameters():
        layer, _, last = name.rpartition(".")
        assert parameter is live.get(name, live.get(f"{layer}.base_layer.{last}")), name


def test_the_reference_of_an_adapter_that_is_trained_on_is_its_start(tiny: Any, tmp_path: Path) -> None:
    policy = adapted(tiny, tiny.save(tmp_path / "model"))
    start = tiny.logits(policy.model)
    trainer = tiny.trainer(tmp_path, policy, {"preset": "grpo", "kl_coef": 0.1}, learning_rate=1e-2)
    trainer.update([tiny.group(REWARDS)])
    live = dict(policy.model.named_parameters())
    for name, parameter in trainer.reference.named_parameters():
        assert (parameter is live[name]) == (".lora_" not in name), name
    assert tiny.logits(trainer.reference).equal(start)
    assert not tiny.logits(policy.model).equal(start)


def test_a_critic_shares_the_models_weights_and_comes_back(tiny: Any, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model")
    first = tiny.trainer(tmp_path, tiny.load(folder, {"rank": 4}), {"preset": "ppo"})
    assert first.critic is not None
    live = {id(parameter) for parameter in first.policy.model.parameters()}
    shared = [name for name, parameter in first.critic.body.named_parameters() if id(parameter) in live]
    assert shared
    assert not any("lora" in name for name in shared)
    for seed in range(2):
        first.update([tiny.group(REWARDS, seed)])
    state = first.extra_state()["critic"]
    assert state["body"]
    assert all("lora" in name for name in state["body"])
    second = tiny.trainer(tmp_path, tiny.load(folder, {"rank": 4}), {"preset": "ppo"})
    second.load_extra_state(first.extra_state())
    episodes = [tiny.group(REWARDS, 5)]
    assert second.critic.advantages(episodes) == first.critic.advantages(episodes)
    whole = tiny.trainer(tmp_path, tiny.load(folder), {"preset": "ppo"})
    with pytest.raises(CheckpointError, match="critic in the checkpoint has other weights"):
        whole.load_extra_state(first.extra_state())


def update_gradients(policy: PolicyModel, directory: Path, *, share: bool, computed: int) -> dict[str, torch.Tensor]:
    """Of one update on BATCH, in which a layer is `computed` so often."""
    settings = SftConfig(from_run="x", share_prefix=share, max_grad_norm=1e9)
    trainer = SupervisedTrainer(policy, settings, directory)
    assert trainer.shares is share
    assert trainer._score.fallback is None, "no logits of all positions with an adapter either"
    found: dict[str, torch.Tensor] = {}

    def caught(rate: float) -> float:
        found.update({name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None})
        return 0.0

    trainer.optimizer.step = caught  # type: ignore[method-assign]
    passes: list[int] = []
    handle = policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: passes.append(1))
    trainer.update(BATCH)
    handle.remove()
    assert len(passes) == computed
    policy.model.zero_grad()
    return found


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_gradients_do_not_depend_on_how_they_are_computed(
    tiny: Any, tmp_path: Path, lora: dict[str, Any] | None, share: bool
) -> None:
    """In float64: beginnings shared or not, activations kept or computed again; and against the full logits."""
    folder = tiny.save(tmp_path / "model", dtype="float64")
    make = tiny.load if lora is None else partial(adapted, tiny)
    policy, recomputing = make(folder, lora), make(folder, lora, gradient_checkpointing=True)
    policy.model.double()
    recomputing.model.double()
    kept = update_gradients(policy, tmp_path, share=share, computed=1)
    again = update_gradients(recomputing, tmp_path, share=share, computed=2)

    tokens, total = 0, torch.zeros((), dtype=torch.float64)
    for item in BATCH:
        ids, mask = torch.tensor([item.ids]), torch.tensor(item.loss_mask).bool()
        logprobs_BT, _ = tiny.naive(policy.model, ids, torch.ones_like(ids))
        total, tokens = total - logprobs_BT[0][mask].sum(), tokens + int(mask.sum())
    (total / tokens).backward()
    full = {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}
    assert kept.keys() == again.keys() == full.keys() == trained_names(policy.model)
    for name, grad in kept.items():
        assert (again[name] - grad).abs().max() <= 1e-12, name
        # The model's norms compute in float32 whatever its weights are in.
        assert (full[name] - grad).abs().max() <= 1e-6, name


def test_an_adapters_checkpoint_and_a_whole_models_are_told_apart(tiny: Any, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model")

    def saver(lora: dict[str, Any] | None, name: str) -> Saver:
        trainer = tiny.fine_tuner(tmp_path, tiny.load(folder, lora))
        return Saver(trainer, tmp_path / name, 2, FixedRows(2), {})

    for lora, other, problem in (
        ({"rank": 4}, None, "it holds an adapter, and the config has no model.lora"),
        (None, {"rank": 4}, "it holds a whole model, and the config has model.lora"),
    ):
        one = saver(lora, problem[:20])
        one.trainer.update(BATCH)
        one.save()
        with pytest.raises(CheckpointError, match=problem):
            saver(other, problem[:20]).restore()
