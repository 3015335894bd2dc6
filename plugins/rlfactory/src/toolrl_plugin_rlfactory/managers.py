"""Stand-ins for RLFactory's tool managers, to derive from.

    from envs.tool_manager.base_manager import ToolManager          in a file of the user's, or
    from toolrl_plugin_rlfactory.managers import ToolManager

`QwenManager` and the others are `ToolManager` under their own names: RLFactory's read and answer calls alike, and
differ in how they write prompts, which is the chat format's part here.
"""

from __future__ import annotations

import asyncio
import functools
import json
from ast import literal_eval
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError
from toolrl.types import ParsedTurn
from toolrl_plugin_rlfactory import reading
from toolrl_plugin_rlfactory.options import REGISTERED

__all__ = [
    "TOOL_MANAGER_REGISTRY",
    "CentralizedQwenManager",
    "DocParserError",
    "Llama3Manager",
    "ManagerConfig",
    "Qwen25Manager",
    "QwenManager",
    "ToolManager",
    "ToolServiceError",
]


class ToolServiceError(Exception):
    """A tool's failure that the model should read."""

    def __init__(
        self, exception: Exception | None = None, code: Any = None, message: Any = None, extra: Any = None
    ) -> None:
        super().__init__(str(exception) if exception is not None else f"\nError code: {code}. Error message: {message}")
        self.exception, self.code, self.message, self.extra = exception, code, message, extra


class DocParserError(ToolServiceError):
    """A document that a tool couldn't read."""


class ManagerConfig(UserDict[str, Any]):
    """Settings by key or by attribute, as OmegaConf gives them. It is no dict, as those aren't: RLFactory's managers
    make OmegaConf's of a dict."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return ManagerConfig(value) if isinstance(value, dict) else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "data":
            raise AttributeError(name)
        if name not in self:
            raise AttributeError(f"the config has no {name!r}; give it in the option `config: {{{name}: …}}`")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "data":
            super().__setattr__(name, value)
        else:
            self[name] = value


@dataclass
class RunningCall:
    """The call that a thread is answering."""

    tool: dict[str, str]
    """As `parse_tools` gives it: name, and args as JSON."""
    failed: bool = False


RUNNING: ContextVar[RunningCall | None] = ContextVar("rlfactory_call", default=None)


class ToolManager:
    """RLFactory's ToolManager. A subclass fills `self.tool_map` in `_build_tools`: name to an object with
    `call(args)`, where `args` is JSON text, and `function`, its name, description and parameters."""

    def __init__(self, verl_config: Any) -> None:
        self.verl_config = verl_config if isinstance(verl_config, ManagerConfig) else ManagerConfig(verl_config)
        self.tool_map: dict[str, Any] = {}
        self.functions: list[Any] = []
        self.storage_manager = None
        self._build_tools()

    # Names.

    def full_name(self, name: str) -> str:
        """The name in `tool_map` that a name means: itself, or else the first with `-name` in it."""
        return name if name in self.tool_map else next((key for key in self.tool_map if f"-{name}" in key), name)

    def get_tool(self, name_or_short_name: str) -> Any:
        """The tool, or None."""
        return self.tool_map.get(self.full_name(str(name_or_short_name)))

    @property
    def all_tools(self) -> dict[str, Any]:
        """Name to tool."""
        return self.tool_map

    # Tools.

    def _build_tools(self) -> None:
        """Nothing: servers and qwen_agent's tools of a `mcp_tools.pydata` are those of the toolsets `mcp` and
        `qwen_agent`."""

    def _init_tool(self, tool: Any) -> None:
        self.tool_map[tool.name] = tool

    def _call_tool(self, tool_name: str, tool_args: Any = "{}", **kwargs: Any) -> str:
        """What a tool answers, as text. Whatever it raises becomes the text of a call that failed."""
        result = self.get_tool(tool_name).call(tool_args, **kwargs)
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, indent=4)

    # Turns.

    def execute_actions(self, responses: Sequence[str], **kwargs: Any) -> tuple[list[str], list[Any]]:
        """Read each response, and run its calls."""
        read = [self.parse_response(response_content=response) for response in responses]
        actions = [action for action, _ in read]
        return actions, asyncio.run(self.execute_all_tools(actions, [found for _, found in read]))

    async def execute_all_tools(self, actions: Sequence[str], tool_list: Sequence[Any]) -> list[Any]:
        """The answers to the calls of each response, all at once."""
        batches = (self._execute_tool_batch(action, tools) for action, tools in zip(actions, tool_list, strict=True))
        return list(await asyncio.gather(*batches))

    async def _execute_tool_batch(self, action: str, tools: Any) -> Any:
        if action == "answer":
            return {"role": "assistant", "content": tools}
        if action == "error":
            return {"role": "assistant", "content": f"# Extract the tools failed due to: {tools}"}
        if action != "actions":
            raise ValueError(f"Unexpected action: {action}")
        replies = await asyncio.gather(*(self._execute_one(tool) for tool in tools))
        return [{"role": "tool", "content": reply} for reply in replies]

    async def _execute_one(self, tool: dict[str, str]) -> str:
        args: Any
        name, args = tool["name"], tool["args"]
        if self.get_tool(name) is None:
            return str(args) if name == reading.EMPTY else reading.not_found(name)
        running = RUNNING.get()
        try:
            args = json.loads(args)
            if not isinstance(args, dict):
                raise ToolServiceError(ValueError(reading.no_object(args)))
            call = functools.partial(self._call_tool, name, reading.dumped(args))
            # While a call is running, this thread is its own.
            result = await asyncio.to_thread(call) if running is None else call()
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - text for the model, all of it
            if running is not None:
                running.failed = True
            return failed(name, args, str(error) or type(error).__name__)
        return succeeded(name, args, result)

    # Texts.

    def parse_response(self, response_content: str) -> tuple[str, Any]:
        """`answer` and the text of it, or `actions` and the calls."""
        found, answer = self.parse_end_flag(response_content)
        if found:
            return "answer", answer
        tools = self.parse_tools(response_content)
        return ("actions", tools) if isinstance(tools, list) else ("answer", tools)

    def parse_end_flag(self, response_content: str) -> tuple[bool, str | None]:
        """Whether there is an answer, and the last one with its tags."""
        answer = self._read(response_content).answer
        return answer is not None, None if answer is None else f"{reading.ANSWER}{answer}{reading.ANSWER_END}"

    def parse_tools(self, response: str) -> list[dict[str, str]] | str:
        """Each call as name and args; the response itself where it has none."""
        items = self._read(response).items
        return list(reading.as_tools(items)) if items else response

    def _read(self, response: str) -> ParsedTurn:
        return reading.read(response, whole_text=bool(self.verl_config.get("whole_text", False)))

    def get_prompt(
        self, input_data: Any, tokenizer: Any = None, mode: str = "initial", add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:  # fmt: skip
        """The contents of messages for the next turn; the run's chat format writes them."""
        return joined(input_data)


QwenManager = Qwen25Manager = Llama3Manager = ToolManager
"""RLFactory's managers `qwen3`, `qwen2_5` and `llama3`. There `qwen2_5` reads a closing tag alone as an answer; here it
is an error, too."""


class CentralizedQwenManager(ToolManager):
    """RLFactory's manager `centralized_qwen3`. There an actor of Ray runs the calls of all workers; here it is the one
    process that runs them all."""

    def __init__(self, verl_config: Any, centralized_actor_handle: Any = None, mock: bool = False) -> None:
        super().__init__(verl_config)
        self.centralized_actor_handle = centralized_actor_handle


TOOL_MANAGER_REGISTRY: dict[str, Callable[..., ToolManager]] = {
    **dict.fromkeys(REGISTERED, ToolManager),
    "centralized_qwen3": CentralizedQwenManager,
}


def overrides(manager: Any, names: Sequence[str]) -> bool:
    """Whether a class of the user's has one of these methods of its own."""
    return any(getattr(type(manager), name, None) is not getattr(ToolManager, name) for name in names)


def joined(input_data: Any) -> str:
    """The contents of a message, or of several."""
    items = input_data if isinstance(input_data, list | tuple) else [input_data]
    return "\n".join(str(item.get("content", "")) if isinstance(item, Mapping) else str(item) for item in items)


def succeeded(name: str, args: Any, result: str) -> str:
    """RLFactory's answer to a call that ran."""
    return f"# Execute the tool {name} successed\n  - The args are: {args}\n  - The result is:\n{result}"


def failed(name: str, args: Any, message: str) -> str:
    """RLFactory's answer to a call that didn't."""
    return f"# Execute the tool {name} failed\n  - The original args are: {args}\n  - Error message:\n{message}"


def parse_mcp_tools_config(file_path: str) -> list[Any]:
    """The list of a `mcp_tools.pydata`, a Python literal. Raises ConfigError."""
    try:
        tools = literal_eval(Path(file_path).expanduser().read_text(encoding="utf-8").strip())
    except OSError as error:
        raise ConfigError(f"config_path: {file_path!r} can't be read: {error.strerror}") from None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        why = str(error).partition(": <")[0]  # Python names an object's address behind it.
        raise ConfigError(f"config_path: {file_path!r} is no Python literal: {why}") from None
    if not isinstance(tools, list):
        raise ConfigError(f"config_path: {file_path!r} holds a {type(tools).__name__}, expected a list of tools")
    return tools
