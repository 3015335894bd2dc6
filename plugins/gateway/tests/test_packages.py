"""Agents of packages from PyPI and npm, each in a process of its own, against an engine that answers from a script: a
well-formed turn, a badly formatted, a cut and a refused one each.

The programs are those of docs/examples/own-agent and of the folder agents beside this file. `nox -s harnesses` installs
the newest packages in several environments, as not all go together: TOOLRL_AGENTS_PYTHON has their interpreters, as
PATH has folders, and TOOLRL_AGENTS_NODE the folder of node_modules. What was seen is written to TOOLRL_AGENTS_SEEN, of
which agents/table.py makes the table of docs/howto/train-your-own-agent.md.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox
from toolrl.types import Episode, Message, Task
from toolrl_plugin_gateway.command_harness import CommandHarness
from toolrl_plugin_gateway.dialect import RefusedError
from toolrl_plugin_gateway.options import CommandOptions
from toolrl_testing.fakes import FakeChatFormat, ScriptedEngine, make_build_context

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="children are ended on Linux")]
PYTHONS = os.environ.get("TOOLRL_AGENTS_PYTHON", sys.executable).split(os.pathsep)
NODE = os.environ.get("TOOLRL_AGENTS_NODE")
SEEN = os.environ.get("TOOLRL_AGENTS_SEEN")
PROGRAMS = (Path(__file__).parents[3] / "docs" / "examples" / "own-agent", Path(__file__).parent / "agents")
TASK = Task("t", (Message("user", "What is 6 * 7 + 1?"),), answer="43")
CUT = "x" * 3000
"""More than a turn may have."""
BROKEN = '<tool_call>\n{"name": "calculator", "argu'
UNFORMATTED = ["The answer is 43.", '{"value": 43}']
"""Where JSON is wanted: the second, if the agent asks again."""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def loop(name: str) -> list[str]:
    return [call(name, expression="6 * 7"), call(name, expression="42 + 1"), "43"]


LOOP, LOOP2 = loop("calculator"), loop("calculate")


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


HAND_OVER = call("transfer_to_expert")


def handed_over(prompt: str) -> str:
    if "transfer_to_expert" in prompt.split("<|user|>")[0]:
        return HAND_OVER
    return "43" if prompt.count("<|tool|>") > 1 else LOOP[0]


def steps(*said: str) -> Callable[[str], str]:
    """Which one by how many turns the prompt shows."""
    return lambda prompt: said[prompt.count("<|assistant|>") - 1]


def thought(tool: str, **arguments: Any) -> str:
    """A step of DSPy's ReAct."""
    parts = {"next_thought": "Hm.", "next_tool_name": tool, "next_tool_args": json.dumps(arguments)}
    return "".join(f"[[ ## {name} ## ]]\n{text}\n\n" for name, text in parts.items()) + "[[ ## completed ## ]]"


@dataclass(frozen=True)
class Case:
    """An agent, what its model says, and what is recorded."""

    package: str
    """Its distribution."""
    program: str
    script: Sequence[str] | Callable[[str], str] = field(default_factory=lambda: LOOP2)
    turns: int = 3
    trajectories: int = 1
    bad: Sequence[str] = (BROKEN, "43")
    """Badly formatted turns, and what is said then."""
    bad_words: str = ""
    """Of the program's variant that wants another format."""
    begins: str = LOOP[0]
    """Its first turn, if the script is a function."""

    @property
    def first(self) -> str:
        return self.begins if callable(self.script) else self.script[0]


DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo 43"
STRUCTURED: dict[str, Any] = {"bad": UNFORMATTED, "bad_words": "structured"}
ANSWER = "[[ ## reasoning ## ]]\nSo.\n\n[[ ## answer ## ]]\n43\n\n[[ ## completed ## ]]"
DSPY = [thought("calculate", expression="42 + 1"), thought("finish"), ANSWER]
DONE_AS_JSON = json.dumps({"next_thought": "Hm.", "next_tool_name": "finish", "next_tool_args": {}})
"""It asks again for JSON if it can't parse a turn."""
SAID = '{"reasoning": "So.", "answer": 43}'
CASES = {
    "openai": Case("openai", "with_openai.py", LOOP),
    "summary": Case("openai", "with_openai_summary.py", summary, trajectories=2),
    "agents-chat": Case("openai-agents", "with_openai_agents.py chat", LOOP),
    "agents-responses": Case("openai-agents", "with_openai_agents.py responses", LOOP),
    "agents-handoff": Case("openai-agents", "with_openai_agents.py handoff", handed_over, 3, 2, begins=HAND_OVER),
    "langgraph": Case("langgraph", "with_langgraph.py", branches, turns=4, trajectories=3),
    "smolagents-code": Case(
        "smolagents",
        "with_smolagents.py code",
        ["It is.\n<code>\nx = calculator('6 * 7')\nprint(x)\n</code>", "<code>\nfinal_answer(int(x) + 1)\n</code>"],
        turns=2,
        bad=["<code>\nfinal_answer(", "<code>\nfinal_answer(43)\n</code>"],
    ),
    "smolagents-tools": Case(
        "smolagents",
        "with_smolagents.py tools",
        steps(LOOP[0], call("final_answer", answer="43")),
        turns=2,
        trajectories=2,
        bad=[BROKEN, call("final_answer", answer="43")],
    ),
    "mini-swe-agent": Case(
        "mini-swe-agent",
        "with_mini_swe_agent.py",
        [call("bash", command="expr 6 \\* 7"), call("bash", command=DONE)],
        2,
        bad=[BROKEN, call("bash", command=DONE)],
    ),
    "qwen-agent": Case("qwen-agent", "with_qwen_agent.py", LOOP),
    "anthropic": Case("anthropic", "with_anthropic.py", ["<think>Let me see.</think>" + LOOP[0], *LOOP[1:]]),
    "anthropic-runner": Case("anthropic", "anthropic_tool_runner.py"),
    "pydantic-ai-chat": Case("pydantic-ai-slim", "with_pydantic_ai.py chat", **STRUCTURED),
    "pydantic-ai-responses": Case(
        "pydantic-ai-slim", "with_pydantic_ai.py responses", ["<think>Hm.</think>" + it for it in LOOP2], **STRUCTURED
    ),
    "pydantic-ai-stream": Case(
        "pydantic-ai-slim", "with_pydantic_ai.py responses stream", ["<think>Hm.</think>" + it for it in LOOP2]
    ),
    "pydantic-ai-anthropic": Case("pydantic-ai-slim", "with_pydantic_ai.py anthropic", **STRUCTURED),
    "litellm-openai": Case("litellm", "with_litellm.py openai", LOOP),
    "litellm-responses": Case("litellm", "with_litellm.py openai/responses", LOOP),
    "litellm-anthropic": Case("litellm", "with_litellm.py anthropic", LOOP),
    "strands": Case("strands-agents", "with_strands.py"),
    "dspy": Case("dspy", "with_dspy.py", DSPY, trajectories=3, bad=["So 43.", DONE_AS_JSON, "It is 43.", SAID]),
    "google-adk": Case("google-adk", "with_google_adk.py", **STRUCTURED),
    "autogen": Case("autogen-agentchat", "with_autogen.py"),
    "agent-framework-chat": Case("agent-framework-core", "with_agent_framework.py chat"),
    "agent-framework-responses": Case("agent-framework-core", "with_agent_framework.py responses"),
    "agno-chat": Case("agno", "with_agno.py chat", **STRUCTURED),
    "agno-responses": Case("agno", "with_agno.py responses", **STRUCTURED),
    "llama-index": Case("llama-index-core", "with_llama_index.py"),
    "haystack-chat": Case("haystack-ai", "with_haystack.py chat"),
    "haystack-responses": Case("haystack-ai", "with_haystack.py responses"),
    "crewai": Case("crewai", "with_crewai.py", **STRUCTURED),
    "instructor-tools": Case(
        "instructor", "with_instructor.py TOOLS", [call("Result", value=43)], 1, bad=["43", call("Result", value=43)]
    ),
    "instructor-json": Case("instructor", "with_instructor.py JSON", UNFORMATTED[1:], 1, bad=UNFORMATTED),
    "instructor-schema": Case("instructor", "with_instructor.py JSON_SCHEMA", UNFORMATTED[1:], 1, bad=UNFORMATTED),
    "ai-chat": Case("ai", "ai_sdk.mjs chat generate"),
    "ai-responses": Case("ai", "ai_sdk.mjs responses stream", ["<think>Hm.</think>" + it for it in LOOP2]),
    "ai-object": Case("ai", "ai_sdk.mjs chat object", UNFORMATTED[1:], 1, bad=UNFORMATTED),
    "anthropic-npm": Case("@anthropic-ai/sdk", "anthropic_tool_runner.mjs"),
    "openai-npm": Case("openai (npm)", "openai_run_tools.mjs"),
}


@functools.cache
def found(package: str, node: bool) -> tuple[str, str]:
    """The interpreter that has a package, and its version. Skips if there is none."""
    if node:
        file = Path(NODE or "", "node_modules", package.removesuffix(" (npm)"), "package.json")
        if NODE and file.is_file():
            return "node", json.loads(file.read_text())["version"]
    code = f"from importlib.metadata import version; print(version({package!r}))"
    for python in () if node else PYTHONS:
        done = subprocess.run([python, "-c", code], check=False, timeout=60, capture_output=True, text=True)
        if done.returncode == 0:
            return python, done.stdout.strip()
    pytest.skip(f"{package} isn't installed: `nox -s harnesses` installs it")


def in_turn(*said: str) -> Callable[[str], str]:
    """One after another, whatever is asked; the last again and again."""
    left = list(said)
    return lambda prompt: left.pop(0) if len(left) > 1 else left[0]


def copy_programs(folder: Path) -> None:
    for programs in PROGRAMS:
        shutil.copytree(programs, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    if NODE:
        (folder / "node_modules").symlink_to(Path(NODE, "node_modules").absolute())


def note(row: dict[str, Any]) -> None:
    """For the table."""
    if SEEN:
        with Path(SEEN).open("a") as file:
            file.write(json.dumps(row) + "\n")


async def played(name: str, kind: str, script: Any, tmp_path: Path, words: str = "", **more: Any) -> Episode:
    hermes = pytest.importorskip("toolrl_plugin_qwen.hermes")
    case = CASES[name]
    program, *own = case.program.split()
    interpreter, version = found(case.package, program.endswith(".mjs"))
    copy_programs(tmp_path / "agents")
    command = [interpreter, str(tmp_path / "agents" / program), *own, *words.split()]
    options = {"command": command, "answer": "last_line", "time_limit": 300, **more}
    harness = CommandHarness(CommandOptions(**options), make_build_context("command", run_dir=tmp_path))
    tools = ToolBox([], cut=lambda text, limit: text)
    environment = Environment("default", hermes.HermesParser(), FakeChatFormat(), tools, harness=harness, max_turns=8)
    engine = ScriptedEngine(script)
    runner = Runner(engine, {"default": environment}, concurrency=1, max_error_rate=1.0)
    await environment.start()
    try:
        (group,) = await runner.run([TASK], 1, Limits(2000, 200_000), round_id="test")
    finally:
        await environment.stop()
    (episode,) = group.episodes
    if kind == "well":  # Each sampled token is recorded once.
        assert episode.sampled_tokens == sum(len(it.generation.ids) for it in engine.generated)
    row = {"name": name, "package": case.package, "version": version, "program": case.program, "kind": kind}
    row |= {"stop": episode.stop_reason, "turns": len(episode.turns), "trajectories": len(episode.trajectories)}
    note({**row, "failure": episode.failure and episode.failure.message})
    return episode


@pytest.mark.parametrize("name", CASES)
async def test_an_agent_of_a_package_plays(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    script = case.script if callable(case.script) else in_turn(*case.script)
    episode = await played(name, "well", script, tmp_path)

    assert episode.failure is None
    assert (episode.answer, episode.stop_reason) == ("43", "final")
    assert len(episode.turns) == case.turns
    assert len(episode.trajectories) == case.trajectories, episode.metrics


@pytest.mark.parametrize("name", CASES)
async def test_a_badly_formatted_turn_is_scored(tmp_path: Path, name: str) -> None:
    """Training should punish it. A program that raises there needs `crash_reward`."""
    case = CASES[name]
    episode = await played(name, "bad", in_turn(*case.bad), tmp_path, case.bad_words, crash_reward=-1.0)

    assert episode.failure is None
    assert episode.stop_reason in ("final", "aborted")
    assert episode.stop_reason == "final" or episode.reward == -1.0
    assert not any("response_format" in str(turn) for turn in episode.turns)


@pytest.mark.parametrize("name", CASES)
async def test_an_episode_that_ends_in_a_cut_turn_is_truncated(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    episode = await played(name, "cut", in_turn(case.first if case.turns > 1 else CUT, CUT), tmp_path)

    assert episode.failure is None
    assert episode.turns[-1].finish == "length"
    assert episode.stop_reason in ("max_tokens", "max_turns")


@pytest.mark.parametrize("name", CASES)
async def test_an_episode_that_ends_in_a_refused_request_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    asked: list[int] = []

    def refuse(question: Any) -> None:
        asked.append(1)
        if len(asked) >= min(2, case.turns):
            raise RefusedError.invalid("refused by the test")

    monkeypatch.setattr("toolrl_plugin_gateway.session.check_history", refuse)
    # mini-swe-agent asks again for minutes.
    episode = await played(name, "refused", in_turn(case.first), tmp_path, time_limit=60)

    assert episode.failure is not None
    assert "its last request was refused: 400 refused by the test" in episode.failure.message
