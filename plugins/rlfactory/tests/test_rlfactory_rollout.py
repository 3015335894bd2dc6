"""The guide's converted config runs: convert, check, rollout, on a tiny model, with a real MCP server."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from rlfactory_script import ROW, SCRIPT, needs_plugins

from toolrl.cli.main import main

SMALL_MODELS = Path(__file__).parents[3] / "docs" / "examples" / "common" / "small_models.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples' small Qwen3, with random weights."""
    for package in ("torch", "transformers", "tokenizers"):
        pytest.importorskip(package, reason=f"{package} isn't installed: pip install 'toolrl[train]'")
    small = runpy.run_path(str(SMALL_MODELS))
    tokenizer, folder = small["learned_tokenizer"](["a"]), tmp_path_factory.mktemp("rlfactory") / "model"
    small["save"](folder, tokenizer, small["qwen3"](tokenizer, 0))
    return folder


ENV = """
from verl import DataProto

from .base import Env


class MineEnv(Env):
    def __init__(self, config, centralized_actor=None):
        super().__init__(config, centralized_actor)
        self.worth = config.worth

    def get_step_reward(self, responses, format_score=0.1):
        return [format_score] * len(responses)

    def _compute_score_with_rules(self, data, tokenizer, if_val=False):
        return [[float(self.worth)] for _ in data]
"""


SERVER = """
try:
    from mcp.server.fastmcp import FastMCP
except ImportError:
    from mcp.server.mcpserver import MCPServer as FastMCP

mcp = FastMCP("LocalServer")


@mcp.tool()
def query_rag(query: str, topk: int = 3) -> str:
    \"\"\"Search.\"\"\"
    return "Oslo is the capital."


mcp.run()
"""


def test_a_converted_config_with_an_env_of_ones_own_rolls_out(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_plugins()
    pytest.importorskip("mcp", reason="mcp isn't installed: pip install mcp")
    monkeypatch.chdir(tmp_path)
    servers = [{"mcpServers": {"search": {"command": sys.executable, "args": ["search.py"]}}}]
    files = {"search.py": SERVER, "mcp_tools.pydata": repr(servers), "envs/mine.py": ENV, "main_grpo.sh": SCRIPT}
    rows = (json.dumps(ROW) + "\n") * 2
    for name, text in {**files, "data/train.jsonl": rows, "data/test.jsonl": rows}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    overrides = [f"actor_rollout_ref.model.path={model}", "data.max_prompt_length=400", "data.max_response_length=16",
                 "data.train_batch_size=2", "actor_rollout_ref.rollout.n=2", "trainer.logger=[console]",
                 "actor_rollout_ref.env.name=mine", "actor_rollout_ref.env.worth=7"]  # fmt: skip
    assert main(["rlfactory", "convert", "main_grpo.sh", *overrides, "-o", "mine.yaml"]) == 0
    assert main(["config", "check", "mine.yaml"]) == 0
    capsys.readouterr()
    sets = ["--set", "device=cpu", "--set", "threads=1"]
    assert main(["rollout", "mine.yaml", "--tasks", "1", "--episodes", "2", "--json", *sets]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["errors/rate"] == 0, facts
    # The Env's own score, with the `worth` of its config, and its credit for each turn.
    assert facts["reward/mean"] == pytest.approx(7 + 0.1 * facts["turns/mean"])
