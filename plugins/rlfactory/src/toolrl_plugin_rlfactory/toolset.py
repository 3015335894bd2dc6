"""The toolset `rlfactory`: the tools of the user's Env or ToolManager.

Each call goes through the Env's own `step`, in a thread, as a response with this one call: so an override of `step`,
`execute_actions`, `_call_tool` or a tool's `call` does what it does in RLFactory. While it runs, the manager's
`parse_response` and `parse_tools` give that call in that thread, whatever the text's form, and `get_prompt` hands the
messages on, as writing them is the chat format's part. Calls of all episodes run at once.

A turn without a call goes to a `step` or an `execute_actions` of the user's own, whose observation the model reads as a
user message, unless it says that the episode is over.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from toolrl.errors import ConfigError, ToolsetError
from toolrl.protocols import BuildContext, EpisodeContext, Reply, ToolSession, Toolset
from toolrl.tools.threads import POOL
from toolrl.types import Message, Task, ToolCall, ToolResult, ToolSpec, Turn
from toolrl_plugin_rlfactory.envs import Env, shared_env
from toolrl_plugin_rlfactory.loading import call_accepted
from toolrl_plugin_rlfactory.managers import RUNNING, RunningCall, joined, overrides
from toolrl_plugin_rlfactory.options import EnvToolOptions
from toolrl_plugin_rlfactory.reading import dumped


class RLFactoryToolset(Toolset, ToolSession):
    """See the module's docstring."""

    def __init__(self, options: EnvToolOptions, context: BuildContext) -> None:
        """Raises ConfigError for classes that can't be made."""
        self._tokenizer = context.tokenizer
        self.env: Any = shared_env(options, context.where or None)
        manager = self.env.tool_manager
        self._specs = tuple(_spec(name, tool, context.where) for name, tool in _named(manager.all_tools))
        _pin(manager)

    def names(self) -> Sequence[str]:
        """What the model can call."""
        return tuple(spec.name for spec in self._specs)

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        """Nothing is an episode's own: RLFactory's classes serve all of a batch."""
        yield self

    def specs(self) -> Sequence[ToolSpec]:
        """All of them, in every episode."""
        return self._specs

    def resolve(self, name: str) -> str | None:
        """The tool that RLFactory takes for a name: the first with `-name` in it."""
        full = self.env.tool_manager.full_name(name)
        return full if any(spec.name == full for spec in self._specs) else None

    async def call(self, call: ToolCall) -> ToolResult:
        """The answer of the Env's `step`."""
        return await POOL.submit(self._call, call)

    async def opening(self) -> Sequence[Message]:
        """Nothing: RLFactory's prompt is the row's."""
        return ()

    async def respond(self, turn: Turn) -> Reply | None:
        """The observation of the user's own `step`. RLFactory's ends the episode, as None does."""
        if getattr(type(self.env), "step", None) is Env.step and not overrides(
            self.env.tool_manager, ("execute_actions",)
        ):
            return None
        observation, done = await POOL.submit(self._step, turn.text)
        return None if done else Reply((Message("user", observation),))

    def _call(self, call: ToolCall) -> ToolResult:
        """In a thread."""
        running = RunningCall({"name": call.name, "args": dumped(dict(call.arguments))})
        token = RUNNING.set(running)
        try:
            observation, done = self._step(call.raw)
        finally:
            RUNNING.reset(token)
        return ToolResult(observation, done=done, error="tool_error" if running.failed else None)

    def _step(self, response: str) -> tuple[str, bool]:
        """One response's observation, and whether the episode is over."""
        result = call_accepted(
            self.env.step, responses=[response], tokenizer=self._tokenizer, image_data=[[]], processor=None
        )
        if not isinstance(result, tuple | list) or len(result) < 2 or any(len(part) != 1 for part in result[:2]):
            raise ToolsetError(
                f"{type(self.env).__name__}.step gave {result!r:.200}, expected (observations, dones, …) with one "
                "item for each response"
            )
        return str(result[0][0]), bool(result[1][0])


def _pin(manager: Any) -> None:
    """Let the manager give the call that a thread is answering, instead of reading a text again."""
    if "get_prompt" in vars(manager):  # Another toolset of this Env did it.
        return
    manager.get_prompt = lambda input_data, *args, **kwargs: joined(input_data)
    for name in ("parse_response", "parse_tools"):
        method = getattr(type(manager), name)
        setattr(manager, name, functools.partial(_given, weakref.ref(manager), method, name == "parse_response"))


def _given(manager: Any, method: Any, response: bool, /, *args: Any, **kwargs: Any) -> Any:
    running = RUNNING.get()
    if running is None:
        return method(manager(), *args, **kwargs)
    tools = [dict(running.tool)]
    return ("actions", tools) if response else tools


def _named(tools: Any) -> list[tuple[str, Any]]:
    """A manager's tools with their names: of a mapping, or of a list, as RLFactory's managers differ in it."""
    return list(tools.items()) if isinstance(tools, Mapping) else [(str(tool.name), tool) for tool in tools]


def _spec(name: str, tool: Any, where: str) -> ToolSpec:
    """The spec, from the tool's `function` or its attributes."""
    function = getattr(tool, "function", None)
    if not isinstance(function, Mapping):
        function = {attribute: getattr(tool, attribute, None) for attribute in ("description", "parameters")}
    inner = function.get("function", function)
    description = str(inner.get("description") or inspect.getdoc(tool) or name)
    try:
        return ToolSpec.from_function(
            {"name": name, "description": description, "parameters": _schema(inner.get("parameters"))}
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"the tool {name!r}: {error}", where=where or None) from None


def _schema(parameters: Any) -> dict[str, Any] | None:
    """A JSON Schema; also of qwen_agent's list of `{name, type, description, required}`."""
    if not isinstance(parameters, list):
        return parameters if parameters is None else dict(parameters)
    inside = ("name", "required")
    properties = {item["name"]: {key: v for key, v in item.items() if key not in inside} for item in parameters}
    required = [item["name"] for item in parameters if item.get("required")]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}
