"""The converted config of each guide runs: convert, check, rollout, on a tiny model of random weights."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import verl_guides

from toolrl.cli.main import main

SMALL_MODELS = Path(__file__).parents[3] / "docs" / "examples" / "common" / "small_models.py"


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


ROWS = {"gsm8k": gsm8k_row, "search": search_row}
"""Of parquet files; the others have their guide's JSON Lines."""
NEEDS = {
    "gsm8k": ("pyarrow",),
    "search": ("pyarrow", "toolrl_plugin_search"),
    "sandbox": ("toolrl_plugin_sandbox_fusion",),
}


@pytest.mark.parametrize("name", verl_guides.TOOLS)
def test_the_guides_config_runs(
    name: str,
    model: Path,
    sandbox: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in ("toolrl_plugin_qwen", "toolrl_plugin_transformers", *NEEDS.get(name, ())):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SANDBOX", sandbox)
    (tmp_path / "model").symlink_to(model)
    verl_guides.write_guide(tmp_path, name)
    convert, truth = ["verl", "convert", f"run_{name}.sh", "-o", "run.yaml"], "4"
    if name in ROWS:
        import pyarrow
        from pyarrow import parquet

        rows = [ROWS[name](index) for index in range(8)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
        convert, truth = [*convert, "data.train_files=train.parquet"], rows[0]["reward_model"]["ground_truth"]
    assert main(convert) == 0
    assert main(["config", "check", "run.yaml"]) == 0
    capsys.readouterr()
    sets = ["--set", "device=cpu", "--set", "threads=1", "--set", "rollout.max_turn_tokens=8"]
    assert main(["rollout", "run.yaml", "--tasks", "2", "--json", *sets]) == 0
    assert json.loads(capsys.readouterr().out)["errors/rate"] == 0
    lines = [json.loads(line) for line in (tmp_path / "dumps" / "0.jsonl").read_text().splitlines()]
    assert "What is 2 + 2?" in lines[0]["input"]
    assert [(line["gts"], line["step"]) for line in lines] == [(truth, 0)] * 4
