"""Agents of packages from PyPI, each in a process of its own, against an engine that answers from a script.

The programs are those of docs/examples/own-agent. `nox -s harnesses` installs the packages; with TOOLRL_AGENTS_PYTHON
those of another interpreter are taken.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox
from toolrl.types import Episode, Message, Task
from toolrl_plugin_gateway.command_harness import CommandHarness
from toolrl_plugin_gateway.options import CommandOptions
from toolrl_testing.fakes import FakeChatFormat, ScriptedEngine, make_build_context

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="children are ended on Linux")]
PYTHON = os.environ.get("TOOLRL_AGENTS_PYTHON", sys.executable)
AGENTS = Path(__file__).parents[3] / "docs" / "examples" / "own-agent"
TASK = Task("t", (Message("user", "What is 6 * 7 + 1?"),), answer="43")


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


LOOP = [call("calculator", expression="6 * 7"), call("calculator", expression="42 + 1"), "43"]


def branches(prompt: str) -> str:
    """LangGraph's: one calculates, one knows, the third has both."""
    *_, last = prompt.split("<|user|>")
    if "It is one of ['42', '43']" in last:
        return "43"
    hurried = "Be fast." in prompt
    return "42" if hurried else "43" if "<|tool|>" in last else LOOP[0]


def summary(prompt: str) -> str:
    *_, last = prompt.split("<|user|>")
    if "You found out" in last:
        return "43"
    return "6 * 7 is 42" if "Summarise" in last else LOOP[0]


def handed_over(prompt: str) -> str:
    if "transfer_to_expert" in prompt.split("<|user|>")[0]:
        return call("transfer_to_expert")
    return "43" if prompt.count("<|tool|>") > 1 else LOOP[0]


def steps(*said: str) -> Callable[[str], str]:
    """Which one by how many turns the prompt shows."""
    return lambda prompt: said[prompt.count("<|assistant|>") - 1]


@dataclass(frozen=True)
class Case:
    """An agent, what its model says, and what is recorded."""

    package: str
    program: str
    script: Sequence[str] | Callable[[str], str]
    turns: int = 3
    trajectories: int = 1


DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo 43"
CASES = {
    "openai": Case("openai", "with_openai.py", LOOP),
    "summary": Case("openai", "with_openai_summary.py", summary, trajectories=2),
    "agents-chat": Case("agents", "with_openai_agents.py chat", LOOP),
    "agents-responses": Case("agents", "with_openai_agents.py responses", LOOP),
    "agents-handoff": Case("agents", "with_openai_agents.py handoff", handed_over, trajectories=2),
    "langgraph": Case("langgraph", "with_langgraph.py", branches, turns=4, trajectories=3),
    "smolagents-code": Case(
        "smolagents",
        "with_smolagents.py code",
        ["It is.\n<code>\nx = calculator('6 * 7')\nprint(x)\n</code>", "<code>\nfinal_answer(int(x) + 1)\n</code>"],
        turns=2,
    ),
    "smolagents-tools": Case(
        "smolagents",
        "with_smolagents.py tools",
        steps(LOOP[0], call("final_answer", answer="43")),
        turns=2,
        trajectories=2,
    ),
    "mini-swe-agent": Case(
        "minisweagent", "with_mini_swe_agent.py", [call("bash", command="expr 6 \\* 7"), call("bash", command=DONE)], 2
    ),
    "qwen-agent": Case("qwen_agent", "with_qwen_agent.py", LOOP),
    "anthropic": Case("anthropic", "with_anthropic.py", ["<think>Let me see.</think>" + LOOP[0], *LOOP[1:]]),
}


@functools.cache
def installed(package: str) -> bool:
    code = f"import sys; from importlib.util import find_spec; sys.exit(find_spec({package!r}) is None)"
    return subprocess.run([PYTHON, "-c", code], check=False, timeout=60).returncode == 0


async def played(case: Case, tmp_path: Path, episodes: int = 1, **options: Any) -> tuple[list[Episode], ScriptedEngine]:
    hermes = pytest.importorskip("toolrl_plugin_qwen.hermes")
    if not installed(case.package):
        pytest.skip(f"{case.package} isn't installed: `nox -s harnesses` installs it")
    shutil.copytree(AGENTS, tmp_path / "agents", ignore=shutil.ignore_patterns("__pycache__"))
    program, *words = case.program.split()
    options = {"command": [PYTHON, str(tmp_path / "agents" / program), *words], "answer": "stdout", **options}
    harness = CommandHarness(CommandOptions(**options), make_build_context("command", run_dir=tmp_path))
    engine = ScriptedEngine(case.script)
    tools = ToolBox([], cut=lambda text, limit: text)
    environment = Environment("default", hermes.HermesParser(), FakeChatFormat(), tools, harness=harness, max_turns=8)
    runner = Runner(engine, {"default": environment}, concurrency=episodes, max_error_rate=1.0)
    await environment.start()
    try:
        (group,) = await runner.run([TASK], episodes, Limits(2000, 100_000), round_id="test")
    finally:
        await environment.stop()
    return list(group.episodes), engine


@pytest.mark.parametrize("name", CASES)
async def test_an_agent_of_a_package_plays(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    ((episode,), engine) = await played(case, tmp_path, time_limit=120)

    assert episode.failure is None
    assert (episode.answer, episode.stop_reason) == ("43", "no_call")
    assert len(episode.turns) == case.turns
    assert len(episode.trajectories) == case.trajectories, episode.metrics
    assert episode.sampled_tokens == sum(len(it.generation.ids) for it in engine.generated)
