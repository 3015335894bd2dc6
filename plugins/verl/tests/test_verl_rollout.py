"""The converted config of each guide runs: convert, check, rollout, on a tiny model of random weights."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import verl_guides

from toolrl.cli.main import main
from toolrl.plugins.registry import load_registry

SMALL_MODELS = Path(__file__).parents[3] / "docs" / "examples" / "common" / "small_models.py"


def needs(*plugins: str) -> None:
    for name in ("qwen", "transformers", *plugins):
        info = load_registry().plugin(name)
        if info is None or not info.usable:
            pytest.skip(f"toolrl-plugin-{name} isn't installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples' small Qwen3, with random weights."""
    for package in ("torch", "transformers", "tokenizers"):
        pytest.importorskip(package, reason=f"{package} isn't installed: pip install 'toolrl[train]'")
    small = runpy.run_path(str(SMALL_MODELS))
    tokenizer, folder = small["learned_tokenizer"](["a"]), tmp_path_factory.mktemp("verl") / "model"
    small["save"](folder, tokenizer, small["qwen3"](tokenizer, 0))
    return folder


def gsm8k_row(index: int) -> dict[str, Any]:
    """As verl's gsm8k_tool_agent_loop.py writes it."""
    question = "What is 2 + 2? Let's think step by step and output the final answer after `####`."
    return {
        "data_source": "openai/gsm8k",
        "agent_name": "tool_agent",
        "prompt": [{"role": "system", "content": "You are a math expert."}, {"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {
            "split": "train",
            "index": index,
            "answer": "2 + 2 = <<2+2=4>>4\n#### 4",
            "question": "What is 2 + 2?",
            "need_tools_kwargs": True,
            "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "4"}}},
            "interaction_kwargs": {"query": question, "ground_truth": "4"},
        },
    }


def search_row(index: int) -> dict[str, Any]:
    """As verl's preprocess_search_r1_dataset.py writes it: answers in a list, in an object."""
    truth = {"target": ["Four", "4"]}
    kwargs = {"ground_truth": truth, "question": "What is 2 + 2?", "data_source": "searchR1_nq"}
    return {
        "data_source": "searchR1_nq",
        "prompt": [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "What is 2 + 2?"}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {
            "index": index,
            "need_tools_kwargs": True,
            "question": "What is 2 + 2?",
            "split": "train",
            "tools_kwargs": {"search": {"create_kwargs": kwargs}},
        },
        "metadata": None,
    }


@pytest.mark.parametrize(("name", "row"), [("gsm8k", gsm8k_row), ("search", search_row)])
def test_parquet_of_verls_preprocessing_runs(
    name: str,
    row: Callable[[int], dict[str, Any]],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install 'toolrl[parquet]'")
    needs(*(("search",) if name == "search" else ()))
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model)
    verl_guides.write_guide(tmp_path, name)
    parquet.write_table(pyarrow.Table.from_pylist([row(index) for index in range(8)]), tmp_path / "train.parquet")
    overrides = ["data.train_files=train.parquet", "data.val_files=null"]
    assert main(["verl", "convert", f"run_{name}.sh", "-o", "run.yaml", *overrides]) == 0
    assert "trainer:\n  steps: 30\n" in (tmp_path / "run.yaml").read_text()  # 8 rows, 4 a step, 15 times.
    assert main(["config", "check", "run.yaml"]) == 0
    capsys.readouterr()
    sets = ["--set", "device=cpu", "--set", "threads=1", "--set", "rollout.max_turn_tokens=8"]
    assert main(["rollout", "run.yaml", "--tasks", "2", "--json", *sets]) == 0
    assert json.loads(capsys.readouterr().out)["errors/rate"] == 0
    lines = [json.loads(line) for line in (tmp_path / "dumps" / "0.jsonl").read_text().splitlines()]
    assert [line["gts"] for line in lines] == [row(0)["reward_model"]["ground_truth"]] * 4


@pytest.mark.parametrize("name", ["geo3k", "sandbox"])
def test_the_guides_config_runs(
    name: str,
    model: Path,
    sandbox: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    needs(*(("sandbox-fusion",) if name == "sandbox" else ()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SANDBOX", sandbox)
    (tmp_path / "model").symlink_to(model)
    verl_guides.write_guide(tmp_path, name)
    assert main(["verl", "convert", f"run_{name}.sh", "-o", "run.yaml"]) == 0
    assert main(["config", "check", "run.yaml"]) == 0
    capsys.readouterr()
    sets = ["--set", "device=cpu", "--set", "threads=1", "--set", "rollout.max_turn_tokens=8"]
    assert main(["rollout", "run.yaml", "--tasks", "2", "--json", *sets]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["errors/rate"] == 0, facts
    lines = [json.loads(line) for line in (tmp_path / "dumps" / "0.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    assert "What is 2 + 2?" in lines[0]["input"]
    assert (lines[0]["gts"], lines[0]["score"], lines[0]["step"]) == ("4", 0.0, 0)
