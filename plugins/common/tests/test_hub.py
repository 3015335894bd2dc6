"""What is asked of the Hub before something is loaded from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolrl.errors import DataError
from toolrl_common.hub import check_on_hub
from toolrl_testing.fake_hub import FakeHub, fake_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    constants = pytest.importorskip("huggingface_hub.constants")
    with fake_hub({"hf_ada": {"ada"}, "hf_eve": {"eve"}}) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_ada")
        server.add("ada/model", {"config.json": b"{}"}, private=True)
        server.add("ada/gated", {"config.json": b"{}"}, gated=True)
        server.add("ada/rows", {"rows.jsonl": b""}, kind="datasets")
        yield server


def test_what_is_there_passes_with_one_request(hub: FakeHub) -> None:
    check_on_hub("ada/model", "model")
    check_on_hub("ada/rows", "dataset", "main")
    assert hub.requests[-2:] == ["GET /api/models/ada/model", "GET /api/datasets/ada/rows/revision/main"]


@pytest.mark.parametrize(
    ("name", "kind", "revision", "token"),
    [
        ("ada/none", "model", None, "hf_ada"),
        ("ada/model", "model", None, ""),
        ("ada/a b", "dataset", None, "hf_ada"),
        ("ada/gated", "model", None, "hf_eve"),
        ("ada/rows", "dataset", "v9", "hf_ada"),
        ("ada/model", "model", None, "hf_old"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, revision: str | None, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(DataError, match="the Hub has no such (model|data set), or none that you may read"):
        check_on_hub(name, kind, revision)  # type: ignore[arg-type]
