"""The trainer `served`: an evaluation whose model a server holds, in a process that never imports torch."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import yaml
from sglang_server import SglangServer, serving
from vllm_help import make_model, make_tokenizer

from toolrl.cli.main import main

COMMAND = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] == "torch" else find_spec(name, *rest)
sys.modules["torch"] = None
from toolrl.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""As where torch isn't installed."""


PLAIN = {"use": "plain", "options": {"turn_end": ["~"]}}


async def test_an_evaluation_needs_no_torch(tmp_path: Path) -> None:
    model, tokenizer = make_model(), make_tokenizer()
    model.config.save_pretrained(tmp_path / "model")  # No weights: they are the server's.
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2+2=", "answer": "4"}\n' * 3)
    config = {
        "model": {"path": str(tmp_path / "model")},
        "trainer": {"use": "served"},
        "engine": {"use": "openai", "options": {"dialect": "sglang", "update_weights": False, "verify_weights": False}},
        "data": {"eval": {"use": "jsonl", "options": {"path": str(tmp_path / "rows.jsonl")}}},
        "environments": {"default": {"parser": "hermes", "chat_format": PLAIN, "rewards": ["exact"]}},
        "rollout": {"max_turn_tokens": 8, "max_episode_tokens": 128},
        "run": {"dir": str(tmp_path / "runs"), "name": "served"},
    }

    async def run(*command: str) -> tuple[int | None, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", COMMAND, *command,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    async with serving(model, tokenizer) as server:
        assert isinstance(server, SglangServer)
        config["engine"]["options"]["url"] = server.url  # type: ignore[index]
        (tmp_path / "eval.yaml").write_text(yaml.safe_dump(config))
        status, out, err = await run("config", "check", str(tmp_path / "eval.yaml"))
        assert status == 0, out + err
        status, out, err = await run("eval", str(tmp_path / "eval.yaml"), "--json")
        assert status == 0, out + err
        assert json.loads(out)["accuracy"] >= 0
        assert [path for path, _ in server.asked].count("/generate") == 3
        status, _, err = await run("train", str(tmp_path / "eval.yaml"), "--set", "data.train=jsonl")
        assert status != 0
        assert "data.train" in err or "trains nothing" in err


def test_rollout_workers_and_unknown_models_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2+2=", "answer": "4"}\n')
    config = {
        "model": {"path": str(tmp_path / "model")},
        "trainer": {"use": "served"},
        "engine": {"use": "openai", "options": {"url": "http://localhost:1"}},
        "data": {"eval": {"use": "jsonl", "options": {"path": str(tmp_path / "rows.jsonl")}}},
        "environments": {"default": {"parser": "hermes", "chat_format": PLAIN, "rewards": ["exact"]}},
        "cluster": {"rollout_workers": 1},
        "run": {"dir": str(tmp_path / "runs"), "name": "served"},
    }
    (tmp_path / "eval.yaml").write_text(yaml.safe_dump(config))
    assert main(["eval", str(tmp_path / "eval.yaml")]) == 1
    shown = capsys.readouterr().err
    assert "cluster.rollout_workers: 1" in shown
    assert "a server holds them" in shown
    words = ("--set", "cluster.rollout_workers=0", "--set", "model.path=owner/name")
    assert main(["eval", str(tmp_path / "eval.yaml"), *words]) == 1
    assert "'owner/name' is no folder here and isn't in the Hub's cache" in capsys.readouterr().err
