"""Why a push to the Hub fails, said before a model is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from toolrl.errors import ToolrlError
from toolrl.runs.folder import RunFolder
from toolrl_plugin_torch.publishing.model_card import Export, model_card
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
        ("ada/calc", "hf_old", "Invalid credentials"),
        ("eve/calc", "hf_ada", "rights to create a model under this namespace"),
        ("ada/full", "hf_ada", "the Hub has a model of this name already"),
        ("ada/public", "hf_ada", "the repository is public already"),
    ],
)
def test_why_a_repository_cannot_be_opened(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, name: str, token: str, says: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ToolrlError, match=f"--push {name}: .*{says}"):
        open_repository(name, private=True, overwrite=False)


def test_an_empty_repository_and_one_to_overwrite_are_taken(hub: FakeHub) -> None:
    assert open_repository("calc", private=True, overwrite=False) == "ada/calc"
    assert open_repository("ada/calc", private=True, overwrite=False) == "ada/calc"
    assert open_repository("ada/full", private=False, overwrite=True) == "ada/full"


def test_the_card_keeps_what_is_the_machines_own(tmp_path: Path) -> None:
    data = {"use": "jsonl", "options": {"path": "/srv/ann/tasks.jsonl", "api_key": "sk-1234567890"}}
    config = {
        "model": {"path": "/srv/ann/model"},
        "data": {"train": data, "eval": None},
        "environments": {},
        "sft": {"data": data, "learning_rate": 1e-4, "batch_size": 2},
    }
    run = RunFolder.create(tmp_path / "a: [run", config, total_steps=1)
    (tmp_path / "step-000001").mkdir()
    card = str(model_card(Export(run, tmp_path / "step-000001", tmp_path, None), "ada/a"))
    run.close()
    assert "/srv/ann" not in card
    assert "1234567890" not in card
    assert "`jsonl` tasks.jsonl" in card
