"""The search example: its run with a few steps, through a server and the MCP tool, and each of its ways to search."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from toolrl.config.load import load_config
from toolrl.plugins.registry import load_registry
from toolrl.rollouts.runner import Runner
from toolrl.types import Episode
from toolrl_testing import ScriptedEngine

for name in ("torch", "transformers", "numpy", "aiohttp", "toolrl_plugin_search", "toolrl_plugin_qwen",
             "toolrl_plugin_transformers"):  # fmt: skip
    pytest.importorskip(name)

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "search"


def needs(through: str) -> None:
    if through == "mcp":
        for name in ("mcp", "toolrl_plugin_mcp"):
            pytest.importorskip(name)


def test_the_example_runs_through_server_and_mcp_tool(run_script: Any, tmp_path: Path) -> None:
    needs("mcp")
    few = ("--sft-steps", "2", "--steps", "1")
    said = run_script(tmp_path, EXAMPLE / "search.py", "--dir", "runs", "--through", "mcp", *few)
    table = said[said.index("Held-out questions") :].splitlines()
    assert table[1].split() == ["before", "after"]
    assert [line.split()[0] for line in table[2:5]] == ["reward", "accuracy", "searches"]
    assert (tmp_path / "runs" / "grpo" / "report.html").stat().st_size > 1000
    summary = json.loads((tmp_path / "runs" / "summary.json").read_text())
    assert set(summary["reward"]) == {"before", "after"}


@pytest.fixture(scope="module")
def world(run_script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's world, and the index of its corpus."""
    folder = tmp_path_factory.mktemp("search")
    run_script(folder, EXAMPLE / "make_world.py", "world")
    run_script(folder, "-m", "toolrl", "search", "index", "world/corpus.jsonl", "--out", "index")
    return folder


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE / "search.py"))


def says(tool: str) -> Any:
    """A model that searches for the place that it is asked about, and answers by what is found."""

    def say(prompt: str) -> str:
        found = re.findall(r"It is in (\w+)\.", prompt)
        if found:
            return f"<answer>{found[-1]}</answer>"
        (place,) = re.findall(r"Where is (\w+)\?", prompt)
        return f'<tool_call>\n{{"name": "{tool}", "arguments": {{"query": "{place}"}}}}\n</tool_call>'

    return say


async def play(config: Path, sets: dict[str, Any], tool: str) -> list[Episode]:
    from toolrl.assembly import assemble

    loaded = load_config(config, [f"{key}={value}" for key, value in sets.items()])
    async with assemble(loaded, load_registry(), total_steps=0, data={"data.eval": True}, observers=[]) as assembly:
        chat = assembly.environments["default"].chat
        runner = Runner(ScriptedEngine(says(tool), chat), assembly.environments, concurrency=16)
        data = assembly.dataset("eval")
        groups = await runner.run([data[index] for index in range(8)], 2, assembly.limits, round_id="eval-0")
        return [episode for group in groups for episode in group.episodes]


@pytest.mark.parametrize("through", ["index", "server", "mcp"])
def test_each_way_finds_what_the_corpus_says(
    world: Path, example: dict[str, Any], tmp_path: Path, through: str
) -> None:
    needs(through)
    tool = "query_rag" if through == "mcp" else "search"
    with example["place_to_search"](argparse.Namespace(dir=world, through=through)) as place:
        sets = {
            "model.path": world / "world" / "model",
            "run.dir": tmp_path,
            "data.train.options.path": world / "world" / "train.jsonl",
            "data.eval.options.path": world / "world" / "heldout.jsonl",
            **place,
        }
        episodes = asyncio.run(play(EXAMPLE / "grpo.yaml", sets, tool))
    assert len(episodes) == 16
    for episode in episodes:
        assert episode.failure is None
        assert [record.call.name for record in episode.calls] == [tool]
        assert episode.correct == 1.0
        # The right answer, a tenth for the turn with the search, less the price of a call.
        assert episode.reward == pytest.approx(1 + 0.1 - 0.05)
