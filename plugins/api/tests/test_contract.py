"""The api plugin keeps the contracts of a plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from api_stub import KEY, refuses

from toolrl_testing import PluginContract
from toolrl_testing.http_stub import HttpStub


class TestContract(PluginContract):
    plugin = "api"
    options: ClassVar[Any] = {"chat": {"base_url": "http://127.0.0.1:1/v1", "model": "toy"}}
    parser_texts: ClassVar[Any] = {"native": ["The API reads the calls itself."]}

    test_parser_finds_calls = None  # type: ignore[assignment]  # its texts hold none


_BARE = """import sys
sys.modules |= dict.fromkeys(("torch", "transformers", "tokenizers"))
from toolrl.cli.main import main
sys.exit(main(sys.argv[1:]))"""
_CONFIG = """engine:
  use: chat
  options: {base_url: "${URL}", model: toy, api_key: "${KEY}", input_price: 1, output_price: 10}
environments: {default: {rewards: [format], parser: unheard_of, chat_format: unheard_of}}
trainer: {use: torch, steps: 3}
data: {eval: {use: jsonl, options: {path: rows.jsonl}}, train: {use: jsonl, options: {path: rows.jsonl}}}
"""


def test_an_evaluation_needs_core_and_this_plugin_alone(api: HttpStub, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(_CONFIG)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Hello?", "answer": ""}\n' * 3)

    def toolrl(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-c", _BARE, *arguments]
        environment = {**os.environ, "URL": f"{api.url}/v1", "KEY": KEY}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert KEY not in done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    assert toolrl("config", "check", "run.yaml")[0] == 0
    status, output = toolrl("eval", "run.yaml", "--json")
    assert status == 0, output
    metrics = json.loads(output)
    assert (metrics["usage/requests"], metrics["usage/prompt_tokens"]) == (3, 300)
    assert metrics["usage/cost"] == pytest.approx((300 + 30 * 10) / 1e6)
    assert toolrl("rollout", "run.yaml", "--overwrite")[0] == 0
    status, output = toolrl("train", "run.yaml")
    assert (status, "gives neither tokens nor log-probabilities" in output) == (1, True), output
    api.script(refuses(401, f"Incorrect key {KEY}"))
    status, output = toolrl("eval", "run.yaml", "--overwrite")
    assert status == 1
    assert f"{api.url}/v1/chat/completions" in output
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert KEY.encode() not in b"".join(written)
