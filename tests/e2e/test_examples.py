"""Examples of the docs that run from their data to a report, with a few steps."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.fixture
def run(run_script: Any) -> Any:
    """`run(name, folder, *needs)`: what `example.py` of a folder prints."""

    def example(name: str, folder: Path, *needs: str) -> str:
        for need in ("torch", "transformers", "toolrl_plugin_transformers", *needs):
            pytest.importorskip(need)
        few = ("--dir", "runs", "--sft-steps", "3", "--steps", "2")
        said: str = run_script(folder, EXAMPLES / name / "example.py", *few)
        assert "before GRPO" in said
        assert "after GRPO" in said
        assert (folder / "runs" / "grpo" / "report.html").is_file()
        return said

    return example


def test_pictures(run: Any, tmp_path: Path) -> None:
    run("geo3k", tmp_path, "pyarrow", "PIL", "toolrl_plugin_geo3k", "toolrl_plugin_qwen")


def test_compaction(run: Any, tmp_path: Path) -> None:
    run("compaction", tmp_path, "toolrl_plugin_history", "toolrl_plugin_calculator", "toolrl_plugin_math")


def test_areals_tool_integrated_reasoning(run: Any, tmp_path: Path) -> None:
    run("tir", tmp_path, "math_verify", "toolrl_plugin_areal", "toolrl_plugin_python", "toolrl_plugin_calculator")


def test_verls_sandbox_fusion_guide(run: Any, tmp_path: Path) -> None:
    needs = ("pyarrow", "aiohttp", "toolrl_plugin_verl", "toolrl_plugin_sandbox_fusion", "toolrl_plugin_qwen")
    pytest.importorskip("toolrl_plugin_sandbox_fusion")
    from toolrl.errors import ToolrlError
    from toolrl_plugin_sandbox_fusion.serve import check

    try:
        check()
    except ToolrlError as error:
        pytest.skip(f"no program can be isolated here, so the server refuses to start: {error}")
    said = run("sandbox-fusion", tmp_path, *needs)
    assert "install toolrl-plugin-wandb" in said  # What the conversion couldn't carry over.
    work = tmp_path / "runs"
    assert "${HERE}/sandbox_fusion_tool_config.yml" in (work / "grpo.yaml").read_text()
    for step in (1, 2):
        lines = [json.loads(line) for line in (work / "dumps" / f"{step}.jsonl").read_text().splitlines()]
        assert len(lines) == 16 * 8
        assert all(line["step"] == step and {"input", "output", "gts", "score"} <= set(line) for line in lines)
    assert len((work / "dumps" / "val" / "0.jsonl").read_text().splitlines()) == 96


def test_the_quickstart_deletes_what_it_made_itself_and_nothing_else(tmp_path: Path) -> None:
    clear = runpy.run_path(str(EXAMPLES / "quickstart" / "quickstart.py"))["clear"]
    own, other = tmp_path / "runs" / "quickstart", tmp_path / "thesis.tex"
    for _ in range(2):
        clear(own)
        (own / "summary.json").write_text("{}")
    other.write_text("mine")
    for place in (tmp_path, other):
        with pytest.raises(SystemExit, match="--dir"):
            clear(place)
    assert other.read_text() == "mine"


def test_the_search_example_through_server_and_mcp_tool(run_script: Any, tmp_path: Path) -> None:
    for need in ("torch", "numpy", "aiohttp", "mcp", "toolrl_plugin_mcp", "toolrl_plugin_search", "toolrl_plugin_qwen"):
        pytest.importorskip(need)
    few = ("--sft-steps", "2", "--steps", "1")
    said = run_script(tmp_path, EXAMPLES / "search" / "search.py", "--dir", "runs", "--through", "mcp", *few)
    table = said[said.index("Held-out questions") :].splitlines()
    assert table[1].split() == ["before", "after"]
    assert [line.split()[0] for line in table[2:5]] == ["reward", "accuracy", "searches"]
    assert (tmp_path / "runs" / "grpo" / "report.html").is_file()


@pytest.mark.slow
def test_the_tutorials_notebook_and_what_it_says_of_the_tool(tmp_path: Path) -> None:
    """In a folder of its own: it needs nothing of the clone."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    path = EXAMPLES.parent / "tutorial" / "notebook.ipynb"
    notebook, folder = nbformat.read(path, as_version=4), {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=1500, kernel_name="python3", resources=folder).execute()
    said = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())]
    accuracies = [float(found) for text in said for found in re.findall(r"step .*accuracy (\S+)%", text)]
    assert accuracies[-1] > 60 > 50 > accuracies[0]
    assert re.search(r"^calculator|: calculator\(", "\n".join(said), re.MULTILINE)
