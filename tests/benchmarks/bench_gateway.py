"""Processor time of a request to the gateway: server, dialect, matching, rendering, parsing and rollout.

    python tests/benchmarks/bench_gateway.py [--episodes 200] [--turns 6] [--json OUT.json]

The engine answers from a script; the clients are those of `openai` and `anthropic`, in a process of their own, whose
time isn't counted. The exit status is 1 where a request takes more than 3 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from toolrl.protocols import Outcome
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox
from toolrl.types import Message, Task
from toolrl_plugin_gateway.harness import GatewayHarness
from toolrl_plugin_gateway.options import HarnessOptions
from toolrl_plugin_gateway.session import Session
from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_testing.fakes import FakeChatFormat, ScriptedEngine, make_build_context

TARGET = 3.0
"""Milliseconds of processor time a request, at most."""
DIALECTS = ("chat", "responses", "messages")
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
FUNCTION = {"name": "calculator", "description": "Evaluates an arithmetic expression.", "parameters": PARAMETERS}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6 * 7"}}\n</tool_call>'
SYSTEM, RESULT = "You are a careful agent. " * 20, "42 " * 20


def answered(resource: Any, final: str, streamed: bool, **asked: Any) -> Any:
    """What a request gives; `final` is the method of a stream that gives the same."""
    if not streamed:
        return resource.create(**asked)
    with resource.stream(**asked) as events:
        return getattr(events, final)()


def chat(api: Any, messages: list[Any], streamed: bool) -> bool:
    """One turn; whether it was the last."""
    asked = {"model": "agent", "messages": messages, "tools": [{"type": "function", "function": FUNCTION}]}
    message = answered(api.chat.completions, "get_final_completion", streamed, **asked).choices[0].message
    answers = [{"role": "tool", "tool_call_id": it.id, "content": RESULT} for it in message.tool_calls or ()]
    messages += [message.to_dict(), *answers]
    return not answers


def responses(api: Any, messages: list[Any], streamed: bool) -> bool:
    asked = {"model": "agent", "input": messages, "tools": [{"type": "function", **FUNCTION}], "instructions": SYSTEM}
    response = answered(api.responses, "get_final_response", streamed, **asked)
    calls = [it for it in response.output if it.type == "function_call"]
    answers = [{"type": "function_call_output", "call_id": it.call_id, "output": RESULT} for it in calls]
    messages += [*(it.to_dict() for it in response.output), *answers]
    return not answers


def messages(api: Any, messages: list[Any], streamed: bool) -> bool:
    tool = {"name": "calculator", "description": FUNCTION["description"], "input_schema": PARAMETERS}
    asked = {"model": "agent", "max_tokens": 500, "system": SYSTEM, "messages": messages, "tools": [tool]}
    message = answered(api.messages, "get_final_message", streamed, **asked)
    calls = [it for it in message.content if it.type == "tool_use"]
    answers = [{"type": "tool_result", "tool_use_id": it.id, "content": RESULT} for it in calls]
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": answers}]
    return not answers


def be_client() -> None:
    """Plays an episode for each line of stdin, and writes a line when it has ended."""
    import anthropic
    import openai

    for line in sys.stdin:
        dialect, streamed, url, key = json.loads(line)
        api = anthropic.Anthropic if dialect == "messages" else openai.OpenAI
        seen: list[Any] = [{"role": "system", "content": SYSTEM}] if dialect == "chat" else []
        seen.append({"role": "user", "content": "What is 6 * 7?"})
        with api(base_url=url + ("" if dialect == "messages" else "/v1"), api_key=key) as client:
            while not globals()[dialect](client, seen, streamed):
                pass
        print(flush=True)


class Elsewhere(GatewayHarness):
    """Plays one episode at a time, by the client's process."""

    def __init__(self, dialect: str, streamed: bool) -> None:
        super().__init__(HarnessOptions(), make_build_context("elsewhere"))
        self.dialect, self.streamed, self.one = dialect, streamed, asyncio.Lock()

    async def start(self) -> None:
        await super().start()
        arguments = (sys.executable, __file__, "--client")
        self.client = await asyncio.create_subprocess_exec(*arguments, stdin=-1, stdout=-1)

    async def stop(self) -> None:
        self.client.stdin.close()
        await self.client.wait()
        await super().stop()

    async def run(self, session: Session) -> Outcome:
        async with self.one:
            self.client.stdin.write(
                json.dumps([self.dialect, self.streamed, self.gateway.url, session.key]).encode() + b"\n"
            )
            await self.client.stdout.readline()
        return Outcome()


async def measure(dialect: str, streamed: bool, turns: int, episodes: int) -> float:
    """Milliseconds of this process a request."""
    engine = ScriptedEngine([CALL] * (turns - 1) + ["42"])
    tools = ToolBox([], cut=lambda text, limit: text)
    harness = Elsewhere(dialect, streamed)
    environment = Environment("default", HermesParser(), FakeChatFormat(), tools, harness=harness, max_turns=turns)
    runner = Runner(engine, {"default": environment}, concurrency=8)
    task, limits = Task("t", (Message("user", "What is 6 * 7?"),)), Limits(2000, 1_000_000)
    await environment.start()
    try:
        await runner.run([task], 2, limits, round_id="warm")
        started = time.process_time()
        (group,) = await runner.run([task], episodes, limits, round_id="measured")
        seconds = time.process_time() - started
    finally:
        await environment.stop()
    assert {(len(it.trajectories), len(it.turns)) for it in group.episodes} == {(1, turns)}
    return 1000 * seconds / (episodes * turns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        be_client()
        return 0
    found = {}
    for dialect in DIALECTS:
        for streamed in (False, True):
            name = dialect + (", streamed" if streamed else "")
            found[name] = asyncio.run(measure(dialect, streamed, args.turns, args.episodes))
            print(f"{name:22}{found[name]:6.2f} ms a request", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if max(found.values()) > TARGET else 0


if __name__ == "__main__":
    sys.exit(main())
