"""The classes of `support/` by module name, and a folder with what RLFactory's guide has."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent / "support")]

from rlfactory_script import ROW, SCRIPT, SERVERS  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main_grpo.sh").write_text(SCRIPT)
    (tmp_path / "mcp_tools.pydata").write_text(SERVERS)
    (tmp_path / "data").mkdir()
    for name in ("train", "test"):
        (tmp_path / "data" / f"{name}.jsonl").write_text(json.dumps(ROW) + "\n")
    return tmp_path
