"""Models and data sets of the Hugging Face Hub: the real client libraries against a Hub on loopback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolrl_testing.fake_hub import FakeHub, fake_hub

ROWS = [{"question": f"{index} + 1?", "answer": str(index + 1)} for index in range(8)]
CARD = b"""---
configs:
- config_name: small
  data_files: [{split: train, path: small/train.jsonl}, {split: test, path: small/test.jsonl}]
---
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    pytest.importorskip("huggingface_hub")
    with fake_hub({"hf_ada": {"ada"}, "hf_eve": {"eve"}}) as server:
        yield server


@pytest.fixture
def variables(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    """Of a process that takes the stand-in for the Hub, with a cache of its own."""
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_ada", "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1"}  # fmt: skip


@pytest.fixture
def export(workplace: Any, trained: Any, variables: dict[str, str]) -> Callable[..., Any]:
    """`export(*options)`: `toolrl export runs/grpo --push ada/calc OPTIONS`."""

    def run(*options: str) -> Any:
        return workplace.toolrl("export", "runs/grpo", "--push", "ada/calc", *options, env=variables)

    return run


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_pushed_model_has_a_card_and_loads_again(
    hub: FakeHub, export: Callable[..., Any], workplace: Any, trained: Any, tmp_path: Path
) -> None:
    import torch
    import transformers
    from huggingface_hub import ModelCard, snapshot_download

    done = export("--private", "--json")
    assert done.returncode == 0, done.stderr
    assert (done.json()["url"], done.json()["private"]) == (f"{hub.url}/ada/calc", True)
    folder = snapshot_download("ada/calc", endpoint=hub.url, token="hf_ada", cache_dir=tmp_path / "cache")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    checkpoint = workplace.folder / "runs" / "grpo" / "checkpoints" / "step-000003"
    for name, tensor in transformers.AutoModelForCausalLM.from_pretrained(checkpoint).state_dict().items():
        assert torch.equal(loaded[name], tensor), name
    assert transformers.AutoTokenizer.from_pretrained(folder).chat_template

    card = ModelCard.load(Path(folder) / "README.md")
    assert {"toolrl", "reinforcement-learning", "dapo"} <= set(card.data.tags)
    last = trained.folder.metrics_lines("eval")[-1].metrics
    row = next(line for line in card.text.splitlines() if line.startswith("| accuracy |"))
    figures = [float(part) for part in re.findall(r"[\d.]+", row.strip("| ").split(" | ")[-1])]
    assert figures == pytest.approx([last[f"accuracy{it}"] for it in ("", "/interval/low", "/interval/high")], abs=5e-4)
    for part in ("`calculator`", "`exact`", "| Steps | 3 of 3 |", "dapo, "):
        assert part in card.text, part

    hub.repos["models", "ada/calc"].commit({**hub.files("ada/calc"), "model-00002.safetensors": b"old"})
    assert "the Hub has a model of this name already" in export().stderr
    assert export("--overwrite").returncode == 0
    assert "model-00002.safetensors" not in hub.files("ada/calc")


def test_models_and_data_by_name_and_without_a_network_from_the_cache(
    own_place: Any, variables: dict[str, str], hub: FakeHub
) -> None:
    pytest.importorskip("datasets")
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
    hub.add("ada/model", files_of(own_place.folder / "model"))
    hub.add("ada/Sums", {"README.md": CARD, "small/train.jsonl": lines, "small/test.jsonl": lines}, kind="datasets")
    options = {"path": "ada/Sums", "config": "small", "split": "test[:4]", "fields": {"prompt": "question"}}
    held_out = {"use": "huggingface", "options": options}
    config = own_place.config({"model": {"path": "ada/model"}, "data": {"eval": held_out}, "run": {"name": "online"}})
    done = own_place.toolrl("eval", config, "--json", env=variables)
    assert done.returncode == 0, done.stderr
    assert len(list(own_place.run("online-eval").episodes())) == 4

    gone = {**variables, "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = own_place.toolrl("eval", config, "--set", "run.name=cached", env=gone)
    assert done.returncode == 0, done.stderr
    assert "the Hub can't be reached" in done.stderr
    done = own_place.toolrl("eval", config, "--set", "model.path=ada/none", "--set", "run.name=none", env=gone)
    assert "'ada/none' is no folder here and isn't in the Hub's cache" in done.stderr
    assert "Retrying" not in done.stderr
