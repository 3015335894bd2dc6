"""Why a push to the Hub fails, said before a model is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from toolrl.errors import ToolrlError
from toolrl.runs.folder import RunFolder
from toolrl_plugin_torch.publishing.model_card import Export, hub_base, model_card
from toolrl_plugin_torch.publishing.push import open_repository
from toolrl_testing.fake_hub import FakeHub, fake_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub({"hf_ada": {"ada", "lab"}}) as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_ada")
        server.add("ada/full", {"config.json": b"{}"})
        server.add("ada/public", {".gitattributes": b""})
        yield server


@pytest.mark.parametrize(
    ("name", "token", "says"),
    [
        ("ada/calc", "", "there is no token of the Hugging Face Hub here"),
        ("ada/calc", "hf_old", "the Hub rejects the token"),
        ("eve/calc", "hf_ada", "no permission: .*rights to create a model under this namespace"),
        ("ada/a b", "hf_ada", "no name of a repository"),
        ("ada/full", "hf_ada", "the Hub has a model of this name already"),
        ("ada/public", "hf_ada", "the repository is public already"),
    ],
)
def test_why_a_repository_cannot_be_opened(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, name: str, token: str, says: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ToolrlError, match=says):
        open_repository(name, private=True, overwrite=False)


def test_a_name_alone_is_the_users_own(hub: FakeHub) -> None:
    assert open_repository("calc", private=True, overwrite=False) == "ada/calc"
    assert open_repository("calc", private=True, overwrite=False) == "ada/calc", "it is empty"
    assert open_repository("ada/full", private=False, overwrite=True) == "ada/full"


def test_without_a_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ToolrlError, match="the push failed: .*refused"):
        open_repository("ada/calc", private=True, overwrite=False)


def test_the_card_keeps_what_is_the_machines_own(tmp_path: Path) -> None:
    options = {
        "path": "/srv/ann/tasks.jsonl",
        "cache": "${CACHE:-/srv/ann/cache}/hub",
        "api_key": "sk-1234567890",
        "env": {"HF_TOKEN": "hf_1234567890", "USED": "${HF_TOKEN}"},
        "command": f"python {Path.home()}/tool.py",
        "fields": {"prompt": "question"},
    }
    config = {
        "model": {"path": "/srv/ann/model"},
        "data": {"train": {"use": "file", "options": options}, "eval": None},
        "environments": {},
        "sft": {"data": {"use": "file", "options": options}, "learning_rate": 1e-4, "batch_size": 2},
    }
    run = RunFolder.create(tmp_path / "a: [run", config, total_steps=1)
    (tmp_path / "step-000001").mkdir()
    card = str(model_card(Export(run, tmp_path / "step-000001", tmp_path, None), "ada/a"))
    run.close()
    for private in ("/srv/ann", "1234567890", str(Path.home())):
        assert private not in card
    for kept in ("path: tasks.jsonl", "cache: ${CACHE}/hub", "USED: ${HF_TOKEN}", "prompt: question"):
        assert kept in card


@pytest.mark.parametrize(
    ("source", "base"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("/cache/hub/models--Qwen--Qwen3-0.6B/snapshots/abc123", "Qwen/Qwen3-0.6B"),
        ("./models/qwen3", None),
        ("models", None),
    ],
)
def test_the_base_models_name(source: str, base: str | None) -> None:
    assert hub_base(source) == base
