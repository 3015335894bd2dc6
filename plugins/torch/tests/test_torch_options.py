"""The sections of a config that the trainer brings: what is remarked on, and what is missing."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.config.load import check_config
from toolrl.config.remarks import check_ranks, missing_files, remarks
from toolrl.errors import ConfigError
from toolrl.plugins.registry import Registry, load_registry
from toolrl_plugin_torch.model_path import missing_model


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


@pytest.fixture
def tree() -> dict[str, Any]:
    """A config without mistakes."""
    return {"model": {"path": "m"}, "environments": {"default": {"parser": "hermes"}}, "trainer": {"steps": 3}}


def told(tree: dict[str, Any], registry: Registry, *overrides: str) -> str:
    return "\n".join(remarks(check_config(tree, overrides, registry=registry).config, registry))


def test_old_names_of_settings_are_read_and_remarked_on(tree: dict[str, Any], registry: Registry) -> None:
    old = ["algorithm.loss=constant", "algorithm.proximal=sampled"]
    old += ["algorithm.reference={mixup: 1.0}", "model.lora={dropout: 0.0}"]
    resolved = check_config(tree, old, registry=registry).resolved["algorithm"]
    assert (resolved["loss_aggregation"], resolved["old_logprobs"]) == ("constant", "sampled")
    remarked = told(tree, registry, *old)
    assert "algorithm.loss: is called `loss_aggregation` now" in remarked
    assert "algorithm.reference.mixup: has no effect any more" in remarked
    assert "model.lora.dropout: has no effect any more" in remarked
    for effect in ("algorithm.reference={mixup: 0.5}", "model.lora={rslora: true}", "rollout.oversampling=1.5"):
        with pytest.raises(ConfigError, match="unknown key"):
            check_config(tree, [effect], registry=registry)


TEACHERS = "algorithm.distillation.teachers"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["trainer.offload=[reference]", "algorithm.kl_coef=0"], "trainer.offload: `reference` has no effect"),
        (["trainer.offload=[critic]"], "trainer.offload: `critic` has no effect"),
        ([f"{TEACHERS}.default.model=t", f"{TEACHERS}.one.model=t"], f"{TEACHERS}.default: no effect"),
    ],
)
def test_an_entry_that_nothing_uses_is_remarked_on(
    tree: dict[str, Any], registry: Registry, overrides: list[str], line: str
) -> None:
    one = {**tree, "environments": {"one": {"parser": "hermes"}}}
    assert line in told(one, registry, *overrides)


def test_an_entry_that_is_used_is_not(tree: dict[str, Any], registry: Registry) -> None:
    used = ["algorithm.preset=ppo", "algorithm.kl_coef=0.1", "trainer.offload=[reference, critic, optimizer]"]
    assert "no effect" not in told(tree, registry, *used)
    assert "no effect" not in told(tree, registry, f"{TEACHERS}.default.model=t")


@pytest.mark.parametrize(
    ("overrides", "beginnings"),
    [
        (["rollout.max_staleness=2"], ["rollout.max_staleness 2: stale samples"]),
        (["rollout.max_staleness=2", "algorithm.old_logprobs=sampled"], []),
        (["rollout.max_staleness=2", "algorithm.importance={}"], []),
    ],
)
def test_settings_whose_effect_may_surprise_are_remarked_on(
    tree: dict[str, Any], registry: Registry, overrides: list[str], beginnings: list[str]
) -> None:
    places = ("algorithm.", "trainer.", "rollout.max_staleness")
    found = [line for line in told(tree, registry, *overrides).splitlines() if line.startswith(places)]
    assert len(found) == len(beginnings), found
    assert all(line.startswith(beginning) for line, beginning in zip(found, beginnings, strict=True)), found


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.replay=0.5"], "rollout.replay"),
        (["rollout.replay=1.0", "rollout.max_staleness=1"], "rollout.replay: Input should be < 1"),
        (["trainer.optimizer=adamw_8bit", "trainer.offload=[optimizer]"], "can't wait on the CPU"),
    ],
)
def test_what_cannot_be_together_is_refused(
    tree: dict[str, Any], registry: Registry, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(tree, overrides, registry=registry)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.offload=[optimizer, critic]", "trainer.offload: critic is not supported"),
        ("trainer.optimizer=adamw_8bit", "trainer.optimizer: adamw_8bit is not supported"),
        ("trainer.router_replay=true", "trainer.router_replay: true is not supported"),
    ],
)
def test_what_ranks_that_share_weights_refuse(
    tree: dict[str, Any], registry: Registry, override: str, message: str
) -> None:
    config = check_config(tree, [override], registry=registry).config
    check_ranks(config, distributed=False)
    with pytest.raises(ConfigError, match=message):
        check_ranks(config, distributed=True)


def test_a_run_folder_that_did_not_oversample_is_still_a_config(tree: dict[str, Any], registry: Registry) -> None:
    config = check_config(tree, ["rollout.oversampling=1.0"], registry=registry).config
    assert "oversampling" not in config.rollout.model_dump()


def test_what_only_training_needs_is_no_need_of_an_evaluation(tree: dict[str, Any], registry: Registry) -> None:
    overrides = [
        "algorithm.distillation={teachers: {default: {model: runs/gone/teacher}}}",
        "engine={use: openai, options: {url: 'http://localhost:1'}}",
        "rollout.top_p=0.9",
        "rollout.keep_sampling_masks=true",
    ]
    config = check_config(tree, overrides, registry=registry).config
    for needed, data in ((True, ["data.train"]), (False, ["data.eval"])):
        told = "\n".join(missing_files(config, registry, data))
        assert ("gone/teacher" in told) is needed
        assert ("keep_sampling_masks" in told) is needed


def test_routes_are_replayed_where_an_engine_records_them(tree: dict[str, Any], registry: Registry) -> None:
    for engine, refused in (
        ("{use: transformers}", True),
        ("{use: transformers, options: {return_routes: true}}", False),
    ):
        wanted = check_config(tree, ["trainer.router_replay=true", f"engine={engine}"], registry=registry).config
        assert ("the engine transformers records no routes" in "\n".join(missing_files(wanted, registry))) is refused


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("override", "package", "message"),
    [
        ("model.lora={}", "peft", "model.lora: needs peft"),
        ("trainer.optimizer=adamw_8bit", "bitsandbytes", "pip install 'toolrl-plugin-torch[bitsandbytes]'"),
    ],
)
def test_a_package_that_is_missing_is_told(
    tree: dict[str, Any],
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    override: str,
    package: str,
    message: str,
) -> None:
    find_spec, found = importlib.util.find_spec, object() if installed else None
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: found if name == package else find_spec(name, *rest)
    )
    monkeypatch.setattr("toolrl.config.remarks._missing_of", lambda options: None)
    wanted = check_config(tree, [override], registry=registry).config
    assert (message in "\n".join(missing_files(wanted, registry))) is not installed
    plain = check_config(tree, [], registry=registry).config
    assert package not in "\n".join(missing_files(plain, registry))


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        ([], True),
        (["algorithm.importance={}"], False),
        (["algorithm.old_logprobs=sampled"], False),
        (["algorithm.rejection={level: token, low: 0.5}"], True),
        (["engine.options={}"], False),
    ],
)
def test_samples_of_rounded_weights_have_to_be_weighed(
    tree: dict[str, Any], registry: Registry, overrides: list[str], refused: bool
) -> None:
    asked = ["engine.use=vllm", "engine.options.quantization=fp8", *overrides]
    config = check_config(tree, asked, registry=registry).config
    said = "engine.options.quantization: fp8 samples from rounded weights, and nothing weighs its samples"
    assert any(line.startswith(said) for line in missing_files(config, registry)) == refused


@pytest.mark.parametrize(
    ("path", "is_told"),
    [
        ("./models/none", True),
        ("a/b/c", True),
        ("org/name", False),
        ("./none:best", True),
        ("word", True),
        ("here/name", True),
        ("here:30", True),
        ("here:best", True),
    ],
)
def test_a_model_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, is_told: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toolrl_plugin_torch.model_path.missing_on_hub", lambda name: None)
    (tmp_path / "here" / "checkpoints" / "step-000003").mkdir(parents=True)
    (tmp_path / "here" / "config.yaml").touch()
    assert (missing_model(path) is not None) == is_told


def whole_model(folder: Path) -> Path:
    """A folder with everything that a model's has, as far as can be seen without torch."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def _adapter_of_no_model(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model.parent / "base")}))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda model: None, None),
        (_adapter_of_no_model, "there is no folder"),
        (lambda model: (model / "model.safetensors").unlink(), "it has no weights"),
        (lambda model: (model / "tokenizer.json").unlink(), "it has no tokenizer"),
        (lambda model: (model / "config.json").write_text("[]"), "config.json holds no JSON object"),
        (lambda model: [file.unlink() for file in model.iterdir()], "has no config.json; it holds: nothing"),
    ],
)
def test_what_a_models_folder_lacks(tmp_path: Path, spoil: Callable[[Path], object], says: str | None) -> None:
    spoil(whole_model(tmp_path / "model"))
    found = missing_model(str(tmp_path / "model"))
    assert (found is None) == (says is None)
    assert (says or "") in (found or "")
