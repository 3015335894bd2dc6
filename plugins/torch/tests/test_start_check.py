"""A trainer computes the model that the engine samples from, each row by itself, or doesn't start."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import ConfigError, DataError
from toolrl_plugin_torch import base_trainer, logprob
from toolrl_plugin_torch.config_changes import ConfigChanges
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.options import ModelConfig, SftConfig
from toolrl_plugin_torch.policy import load_policy
from toolrl_plugin_torch.prefixes.sharing import reason_by_config
from toolrl_plugin_torch.start_check import check_passes
from toolrl_plugin_torch.trainer import SupervisedTrainer

LIMIT = 32
"""Tokens up to which `longrope` takes its short factors."""
LENGTHS = (20, 100, 31, LIMIT, LIMIT + 1)


def family(tiny: Any, name: str, **fields: Any) -> Any:
    """A config of a kind of model, with large random weights."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    small = {"initializer_range": 0.3, "num_hidden_layers": 2}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "phi3": ("Phi3Config", {"original_max_position_embeddings": LIMIT}),
        "phimoe": ("PhimoeConfig", experts),
        "mixtral": ("MixtralConfig", {**experts, "router_jitter_noise": 0.1}),
        "qwen3_moe": (
            "Qwen3MoeConfig",
            {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        ),
        "granitemoe": ("GraniteMoeConfig", experts),
        "gpt_oss": ("GptOssConfig", {**experts, "head_dim": 8, "sliding_window": 9}),
        "gemma2": ("Gemma2Config", {"head_dim": 8, "initializer_range": 0.1, "sliding_window": 9}),
        "llama": ("LlamaConfig", {"attention_dropout": 0.3}),
    }
    if name == "opt":
        own = {"word_embed_proj_dim": 32, "ffn_dim": 48, "layerdrop": 0.9, "init_std": 0.3}
        return transformers.OPTConfig(**{**tiny.shape, **own, "num_hidden_layers": 4, **fields})
    if name == "falcon":
        own = {"hidden_dropout": 0.3, "new_decoder_architecture": True, "initializer_range": 0.3}
        return transformers.FalconConfig(**{**tiny.shape, **own, **fields})
    kind, own = kinds[name]
    return getattr(transformers, kind)(**{**tiny.shape, **small, **own, **fields})


def rope(kind: str) -> dict[str, Any]:
    """`rope_parameters` whose factors are all unlike."""
    more: dict[str, dict[str, Any]] = {
        "default": {},
        "dynamic": {"factor": 4.0},
        "yarn": {"factor": 4.0, "original_max_position_embeddings": LIMIT},
        "llama3": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": LIMIT,
        },
        "longrope": {
            "short_factor": [1.0] * 4, "long_factor": [1.5, 2.0, 4.0, 8.0], "original_max_position_embeddings": LIMIT,
        },
    }  # fmt: skip
    return {"rope_type": kind, "rope_theta": 10000.0, **more[kind]}


def build(config: Any) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config)


def demonstrations() -> list[Demonstration]:
    chance = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, 97, (length,), generator=chance).tolist() for length in LENGTHS]
    return [Demonstration(tuple(row), (0, *[1] * (len(row) - 1))) for row in rows]


def row_by_row(model: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean loss of all demonstrations and its gradients, by plain passes over one row each, in eval mode."""
    model.eval()
    total = torch.zeros(())
    for item in demonstrations():
        ids = torch.tensor([item.ids])
        logprobs = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        total = total - logprobs.gather(1, ids[0, 1:, None]).sum()
    loss = total / sum(len(item.ids) - 1 for item in demonstrations())
    loss.backward()
    return float(loss), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def trainer_of(policy: Any, tmp_path: Path) -> SupervisedTrainer:
    return SupervisedTrainer(policy, SftConfig(data="rows", steps=1, tokens_per_microbatch=4096), tmp_path)


def updated(trainer: SupervisedTrainer, monkeypatch: pytest.MonkeyPatch) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one update, which changes no weight."""
    monkeypatch.setattr(trainer, "_update", dict)
    loss = trainer.update(demonstrations())["loss"]
    return loss, {name: p.grad for name, p in trainer.policy.model.named_parameters() if p.grad is not None}


def distance(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Of all gradients together, relative to their norm."""
    assert found.keys() == wanted.keys()
    apart = sum(float((found[name] - wanted[name]).square().sum()) for name in wanted)
    return float((apart / sum(float(it.square().sum()) for it in wanted.values())) ** 0.5)


NAMES = ("phi3", "phimoe", "mixtral", "qwen3_moe", "granitemoe", "gpt_oss", "gemma2", "llama", "opt", "falcon")
ROPES = ("dynamic", "yarn", "llama3")
KINDS = [*((name, None) for name in NAMES), ("phi3", "longrope"), *(("llama", kind) for kind in ROPES)]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_an_update_is_that_of_plain_passes_in_eval_mode(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str | None, checkpointing: bool
) -> None:
    """Rows on both sides of each limit in one micro-batch; all kinds of noise are on."""
    config = family(tiny, name, **({"rope_parameters": rope(kind)} if kind else {}))
    model = build(config)
    loss, gradients = row_by_row(copy.deepcopy(model))
    model.save_pretrained(tmp_path / "model")
    _tokenizer(tmp_path / "model")
    policy = tiny.load(tmp_path / "model", gradient_checkpointing=checkpointing)
    found = updated(trainer_of(policy, tmp_path), monkeypatch)
    assert found[0] == pytest.approx(loss, abs=1e-5)
    assert distance(found[1], gradients) < 2e-5
    recomputed = [part for part in policy.model.modules() if part.training]
    assert bool(recomputed) == checkpointing, "layers are computed again in the backward pass, as the config says"


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(97)}, "w3"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0").save_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [("mixtral", "router_jitter_noise 0.1"), ("phimoe", "router_jitter_noise"), ("opt", "layerdrop"), ("llama", "0.3")],
)
def test_noise_stops_a_trainer_whose_model_is_in_train_mode(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setattr(base_trainer, "train_without_noise", lambda model: model.train())
    model = build(family(tiny, name))
    before = torch.get_rng_state()
    with pytest.raises(ConfigError, match=f"model.path.*{words}"):
        trainer_of(tiny.policy(model), tmp_path)
    assert torch.equal(before, torch.get_rng_state()), "the run draws what it would have drawn"


class Noisy(torch.nn.Linear):
    """As the code that comes with a checkpoint: in train mode it draws."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out = super().forward(hidden)
        return out * (1 + 0.05 * torch.rand_like(out)) if self.training else out


def test_noise_of_a_models_own_code_stops_the_trainer(tiny: Any, tmp_path: Path) -> None:
    """It stays in train mode, since such code may have no gradients in eval mode."""
    model = tiny.model()
    model.model.layers[0].mlp.up_proj.__class__ = Noisy
    with pytest.raises(ConfigError, match="model.path: Qwen3ForCausalLM.*random numbers"):
        trainer_of(tiny.policy(model), tmp_path)
    first, second = (layer.mlp for layer in model.model.layers)
    first.up_proj.__class__ = torch.nn.Linear
    first.__class__ = type("Own", (type(first),), {"__module__": "modeling_own"})
    trainer_of(tiny.policy(model), tmp_path)
    assert first.training
    assert not second.training


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_rows_that_depend_on_their_neighbours_stop_the_trainer(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Up to the limit they don't; the message says how far."""
    monkeypatch.setattr(logprob, "switch_length", lambda _: None)
    model = build(family(tiny, "phi3", rope_parameters=rope("longrope"))).to(getattr(torch, dtype)).eval()
    check_passes(TokenScorer(model), None, LIMIT)
    with pytest.raises(ConfigError, match=f"model.path.*at most {LIMIT} tokens .*up to 128.*longrope") as error:
        check_passes(TokenScorer(model), None, 128)
    assert f"rollout.max_episode_tokens to {LIMIT}" in str(error.value.hint)


def test_a_kind_that_nobody_knows_is_found_at_lengths_that_the_run_may_reach(tiny: Any) -> None:
    """Beyond the model's own positions `dynamic` changes with each length."""
    model = build(family(tiny, "llama", rope_parameters=rope("dynamic"))).eval()
    check_passes(TokenScorer(model), None, 128)
    with pytest.raises(ConfigError, match="at most 12[78] tokens .*up to 200.*dynamic"):
        check_passes(TokenScorer(model), None, 200)


# Rotary embeddings with two sets of factors.


def load(folder: Path, longest: int | None) -> Any:
    return load_policy(ModelConfig(path=str(folder)), str(folder), torch.device("cpu"), longest=longest)


@pytest.mark.parametrize("name", ["phi3", "phimoe"])
@pytest.mark.parametrize(("longest", "side"), [(LIMIT, "short"), (LIMIT + 1, "long"), (2**31, "long")])
def test_a_run_takes_one_set_of_factors_and_checkpoints_keep_both(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, longest: int, side: str
) -> None:
    more = {"short_mscale": 1.1, "long_mscale": 1.4} if name == "phimoe" else {}
    fields = {"rope_parameters": {**rope("longrope"), **more}, "attention_dropout": 0.25}
    build(family(tiny, name, **fields)).save_pretrained(tmp_path / "model")
    _tokenizer(tmp_path / "model")
    policy = load(tmp_path / "model", longest)
    taken = policy.model.config.rope_parameters
    assert taken["short_factor"] == taken["long_factor"] == rope("longrope")[f"{side}_factor"]
    assert ("max_model_len" in caplog.text) == (side == "long"), "aloud where short sequences change"
    assert reason_by_config(policy.model.config, untried=True) is None, "sequences may share their beginnings"
    policy.weights(0).save_config(tmp_path / "engine")
    engine = json.loads((tmp_path / "engine" / "config.json").read_text())["rope_parameters"]
    assert engine["short_factor"] == engine["long_factor"] == taken["short_factor"], "whatever vLLM's max_model_len is"
    policy.save_whole(tmp_path / "saved")
    before, after = (json.loads((tmp_path / it / "config.json").read_text()) for it in ("model", "saved"))
    assert before["rope_parameters"] == after["rope_parameters"]
    assert before["attention_dropout"] == after["attention_dropout"] == 0.25
    assert policy.model.config.rope_parameters == taken


def test_each_row_is_computed_as_beside_others_of_its_length(tiny: Any, tmp_path: Path) -> None:
    """With one set of factors a row that crosses the limit is, up to there, what it was before."""
    build(family(tiny, "phi3", rope_parameters=rope("longrope"))).save_pretrained(tmp_path)
    _tokenizer(tmp_path)
    model = load(tmp_path, 128).model.eval()
    ids = torch.arange(3, 93)[None]
    with torch.no_grad():
        whole, beginning = (model(input_ids=part, use_cache=False).logits for part in (ids, ids[:, :20]))
    assert torch.allclose(whole[:, :20], beginning, atol=1e-5)


def test_a_demonstration_beyond_the_runs_limit_is_an_error(tiny: Any, tmp_path: Path) -> None:
    """It would be computed with factors for shorter ones."""
    build(family(tiny, "phi3", rope_parameters=rope("longrope"))).save_pretrained(tmp_path / "model")
    _tokenizer(tmp_path / "model")
    trainer = trainer_of(load(tmp_path / "model", LIMIT), tmp_path)
    with pytest.raises(DataError, match=f"100 tokens.*{LIMIT}"):
        trainer.update(demonstrations())


def test_router_logits_are_off_and_kept_in_checkpoints(tiny: Any) -> None:
    config = family(tiny, "qwen3_moe", output_router_logits=True)
    changes = ConfigChanges.make(config)
    assert not config.output_router_logits
    with changes.undone(config):
        assert config.output_router_logits
    assert not config.output_router_logits
