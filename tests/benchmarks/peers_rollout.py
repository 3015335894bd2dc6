"""The loops of verl and of verifiers, for `rollout_overhead.py`: the same turns, texts and tools, without a server.

    pip install --no-deps verl==0.9.1        # and what it imports: ray, tensordict, hydra-core, torchdata, codetiming …
    pip install --no-deps verifiers==0.1.9.post3   # and openai

verl: `ToolAgentLoop` in this process, without Ray's cluster and without its batching: an object for each episode, as
its worker makes them, given a server manager that answers from the script. Parser `hermes`, tools as `function_tool`.

verifiers: `ToolEnv.rollout` with a client in the place of AsyncOpenAI that answers from the script. It gets texts and
calls that are parsed already, as a server would have done that; so its loop neither parses nor tokenizes, which ours
and verl's do. Versions from 0.2 on have another design, whose episodes run in processes or sandboxes and talk to
servers."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
from collections.abc import Awaitable, Callable
from typing import Any

from scripted import SYSTEM, Script, Work, make_tokenizer, question

Found = tuple[str, Callable[[], Awaitable[int]], str]
GROUP = 8


def load_peers(work: Work, count: int) -> tuple[list[Found], dict[str, str]]:
    """Those that can run here, and why the others can't."""
    found: list[Found] = []
    missing: dict[str, str] = {}
    for name, make in (("verl", verl_side), ("verifiers", verifiers_side)):
        if importlib.util.find_spec(name) is None:
            missing[name] = "it isn't installed"
            continue
        try:
            found.append((name, make(work, count), f"version {importlib.metadata.version(name)}"))
        except Exception as error:  # noqa: BLE001 - another version of it, or of what it needs
            missing[name] = f"{type(error).__name__}: {error}"
    return found, missing


async def add(a: int, b: int) -> str:
    """Add two whole numbers.

    Args:
        a: The first summand.
        b: The second summand.
    """
    return str(a + b)


async def multiply(a: int, b: int) -> str:
    """Multiply two whole numbers.

    Args:
        a: The first factor.
        b: The second factor.
    """
    return str(a * b)


def _prompt(number: int) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question(number)}]


def verl_side(work: Work, count: int) -> Callable[[], Awaitable[int]]:
    """verl's tool agent."""
    from omegaconf import OmegaConf
    from transformers.utils import get_json_schema
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.tools.function_tool import FunctionTool
    from verl.tools.schemas import OpenAIFunctionToolSchema
    from verl.workers.rollout.replica import TokenOutput

    tokenizer = make_tokenizer()
    script = Script(work, tokenizer)
    tools = [
        FunctionTool(fn.__name__, fn, OpenAIFunctionToolSchema(**get_json_schema(fn)), is_async=True)
        for fn in (add, multiply)
    ]
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "prompt_length": 4096, "response_length": 4096, "full_determinism": False,
                    "multi_turn": {
                        "max_user_turns": None, "max_assistant_turns": None, "max_parallel_calls": 4,
                        "max_tool_response_length": 1024, "tool_response_truncate_side": "middle", "format": "hermes",
                    },
                }
            }
        }
    )  # fmt: skip
    data = OmegaConf.create({"apply_chat_template_kwargs": {}})

    class Server:
        """Answers one episode from the script."""

        def __init__(self, number: int) -> None:
            self.number, self.turn = number, 0

        async def generate(self, **request: Any) -> Any:
            await asyncio.sleep(0)
            ids = script.turn(self.number, self.turn)
            self.turn += 1
            return TokenOutput(token_ids=list(ids), log_probs=[-0.5] * len(ids), stop_reason="completed")

    async def one(number: int) -> int:
        server = Server(number)
        loop = ToolAgentLoop(
            trainer_config=DictConfigWrap(config), server_manager=server, tokenizer=tokenizer, processor=None,
            dataset_cls=None, data_config=DictConfigWrap(data), hf_model_type="qwen2", tools=ToolListWrap(tools),
        )  # fmt: skip
        output = await loop.run({"temperature": 1.0}, raw_prompt=_prompt(number))
        assert server.turn == work.turns
        assert sum(output.response_mask) == sum(len(script.turn(number, turn)) for turn in range(work.turns))
        return server.turn

    async def run() -> int:
        return sum(await asyncio.gather(*[one(number // GROUP) for number in range(count)]))

    return run


def verifiers_side(work: Work, count: int) -> Callable[[], Awaitable[int]]:
    """verifiers' tool environment."""
    import verifiers as vf
    from datasets import Dataset
    from openai.types.chat import ChatCompletion

    def completion(number: int, turn: int) -> Any:
        said = work.say(number % work.variants, turn)
        message: dict[str, Any] = {"role": "assistant", "content": said.text.partition("\n<tool_call>")[0]}
        if said.name is not None:
            function = {"name": said.name, "arguments": json.dumps(said.arguments)}
            message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return ChatCompletion.model_validate(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "bench", "choices": [choice]}
        )

    answers = [[completion(number, turn) for turn in range(work.turns)] for number in range(work.variants)]
    turns = [0]

    class Client:
        """In the place of AsyncOpenAI: answers one episode from the script."""

        def __init__(self, number: int) -> None:
            self.number, self.turn = number, 0
            self.chat = self.completions = self
            self.base_url = "http://localhost/v1"

        async def create(self, **request: Any) -> Any:
            await asyncio.sleep(0)
            answer = answers[self.number % work.variants][self.turn]
            self.turn += 1
            turns[0] += 1
            return answer

    rows = [{"question": question(number), "answer": ""} for number in range(count // GROUP)]
    environment = vf.ToolEnv(
        dataset=Dataset.from_list(rows), system_prompt=SYSTEM, tools=[add, multiply], max_turns=work.turns + 1
    )

    async def one(number: int) -> None:
        given: Any = {"prompt": _prompt(number), "answer": "", "task": "bench", "example_id": number}
        client: Any = Client(number)
        state = await environment.rollout(given, client, "bench", {"temperature": 1.0})
        assert len(state["trajectory"]) == work.turns, state.get("error")

    async def run() -> int:
        turns[0] = 0
        await asyncio.gather(*[one(number // GROUP) for number in range(count)])
        return turns[0]

    return run
