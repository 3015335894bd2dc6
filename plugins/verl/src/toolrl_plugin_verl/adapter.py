"""A verl tool as a tool of toolrl: one instance an episode, whichever of verl's signatures it was written for.

| | the guides' | 0.9.1's |
|---|---|---|
| create | `create(instance_id, ground_truth, **kwargs) -> id` | `create(create_kwargs={…}) -> (id, ToolResponse)` |
| execute | `execute(instance_id, parameters, **kwargs) -> (text, reward, metrics)` | `execute(instance_id, args, \
agent_data=…) -> (ToolResponse, reward, metrics)` |

All tools of an episode get one instance_id, its `agent_data.request_id`, unless their own `create` gives another.
A tool that takes `**kwargs` gets the task's create_kwargs one by one, and as `create_kwargs`, too, where its class
names that; one without gets what it names. Everything that a stage gets is a copy: a tool that changes its kwargs
changes them for no other episode.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolrl.errors import ToolsetError
from toolrl.protocols import EpisodeContext
from toolrl.tools import Tool
from toolrl.types import Message, ToolResult, ToolSpec
from toolrl_common.user_classes import accepted
from toolrl_plugin_verl import results
from toolrl_plugin_verl.agent import REWARD_SCORES, AgentData, agent_data_of
from toolrl_plugin_verl.loop import LoopThread
from toolrl_plugin_verl.tools.base_tool import BaseTool

SECONDS = 300.0
"""Default time limit of a call. verl has none; here a call that hangs doesn't block the run."""
_log = logging.getLogger(__name__)


@dataclass
class _Instance:
    """A tool's instance in one episode."""

    id: Any
    """As the tool calls it."""
    agent: AgentData
    episode: EpisodeContext
    created: bool = False


class VerlTool(Tool):
    """Wraps a BaseTool, or any object with its four stages."""

    timeout = SECONDS

    def __init__(
        self, tool: Any, loop: LoopThread, *, step_rewards: bool = True, hide: Callable[[str], str] = str
    ) -> None:
        """`hide` takes secrets out of what the tool hands on. Raises ToolsetError for a schema that can't be used."""
        super().__init__()
        self.spec = _spec(tool)
        self._tool = tool
        self._loop = loop
        self._step_rewards = step_rewards
        self._hide = hide
        self._instances: dict[str, _Instance] = {}
        self._takes_whole = _names_create_kwargs(type(tool))
        self._has_reward = _overrides(tool, "calc_reward")
        self._told_id = False

    async def create(  # type: ignore[override]
        self, instance_id: str, /, *, toolrl_episode: EpisodeContext, **create_kwargs: Any
    ) -> Message | None:
        agent = agent_data_of(toolrl_episode)
        instance = self._instances[instance_id] = _Instance(agent.request_id, agent, toolrl_episode)
        given = copy.deepcopy(create_kwargs)
        args, kwargs = _create_arguments(self._tool.create, instance.id, given, whole=self._takes_whole)
        made = await self._loop.call(self._tool.create, *args, **kwargs)
        own_id, response = _created(made)
        problem = f"create() gave the id {own_id!r:.80}, which another episode's instance has"
        shared = any(other.created and other.id == own_id for other in self._instances.values())
        if shared and (args or "instance_id" in kwargs):
            hint = "Use the instance_id that create gets, or a new uuid each time."
            raise ToolsetError(problem, where=self.name_of_tool, hint=hint)
        if shared and not self._told_id:
            # A tool of 0.9.1, written for one instance a call, may give the same id each time: it keeps nothing by it.
            self._told_id = True
            _log.warning("tool %r: %s; what it keeps under it is shared", self.name_of_tool, problem)
        instance.id = instance.id if own_id is None else own_id
        instance.created = True
        return _opening(response)

    async def execute(  # type: ignore[override]
        self, instance_id: str, parameters: dict[str, Any], /, **execute_kwargs: Any
    ) -> ToolResult:
        instance, execute = self._instances[instance_id], self._tool.execute
        given: Any = copy.deepcopy(dict(parameters))
        if _wants_text(execute):
            given = json.dumps(given, ensure_ascii=False)
        kwargs = accepted(execute, {**copy.deepcopy(execute_kwargs), "agent_data": instance.agent})
        returned = await self._loop.call(execute, instance.id, given, **kwargs)
        result = results.from_execute(returned, self.name_of_tool, counts=self._step_rewards)
        if results.TOOL_REWARD in result.metrics:
            instance.agent.tool_rewards.append(result.metrics[results.TOOL_REWARD])
        instance.agent.answered(result.media)
        return result

    async def calc_reward(self, instance_id: str, /, **calc_reward_kwargs: Any) -> float | None:  # type: ignore[override]
        if not self._has_reward:
            return None
        value = await self._stage("calc_reward", instance_id, calc_reward_kwargs)
        reward = results.number(value, self.name_of_tool, "calc_reward")
        if reward is not None:
            self._instances[instance_id].episode.notes.setdefault(REWARD_SCORES, {})[self.name_of_tool] = reward
        return reward

    async def release(self, instance_id: str, /, **release_kwargs: Any) -> None:  # type: ignore[override]
        instance = self._instances.get(instance_id)
        if instance is None:
            return
        try:
            await self._stage("release", instance_id, release_kwargs)
        except Exception:
            if instance.created:
                raise
            # How far `create` came is unknown, and verl's tools delete what may not be there.
            _log.debug("tool %r: release after an unfinished create", self.name_of_tool, exc_info=True)
        finally:
            del self._instances[instance_id]
            instance.agent.hand_on(instance.episode, self._hide)

    @property
    def name_of_tool(self) -> str:
        """What the model calls it."""
        assert self.spec is not None
        return self.spec.name

    async def _stage(self, stage: str, instance_id: str, kwargs: Mapping[str, Any]) -> Any:
        method = getattr(self._tool, stage)
        given = accepted(method, copy.deepcopy(dict(kwargs)))
        return await self._loop.call(method, self._instances[instance_id].id, **given)


def _positional(stage: Any) -> list[inspect.Parameter]:
    """What a stage can be given by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter for parameter in inspect.signature(stage).parameters.values() if parameter.kind in kinds]


def _create_arguments(
    create: Any, instance_id: str, create_kwargs: dict[str, Any], *, whole: bool
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """What `create` gets. Kwargs that it doesn't take are left out where it takes them as `create_kwargs`; else Python
    rejects them. `whole`: its `**kwargs` are to hold `create_kwargs`, too."""
    kwargs, parameters = dict(create_kwargs), inspect.signature(create).parameters
    if "create_kwargs" in parameters or (whole and accepted(create, {"create_kwargs": None})):
        kwargs = accepted(create, {"create_kwargs": copy.deepcopy(create_kwargs), **kwargs})
    first = next((parameter.name for parameter in _positional(create)), "create_kwargs")
    if first != "create_kwargs" and first not in create_kwargs:
        kwargs.pop("instance_id", None)
        return (instance_id,), kwargs
    if "instance_id" in parameters:
        kwargs["instance_id"] = instance_id
    return (), kwargs


def _names_create_kwargs(cls: type) -> bool:
    """True where the class or a base has the text `"create_kwargs"`, as in `kwargs["create_kwargs"]`. Tools written
    before verl handed them in whole have not, and may pass all their kwargs on."""
    for base in cls.__mro__:
        with contextlib.suppress(OSError, TypeError):  # No source: a class of Python's, or made at runtime.
            if base is not BaseTool and re.search(r"[\"']create_kwargs[\"']", inspect.getsource(base)):
                return True
    return False


def _wants_text(execute: Any) -> bool:
    """True where `parameters` is annotated as `str`, as in verl's first tools."""
    return [parameter.annotation for parameter in _positional(execute)[1:2]] in ([str], ["str"])


def _overrides(tool: Any, stage: str) -> bool:
    """False where the stage is a base class's own, which does nothing; verl's counts as one, too."""
    owner = next((base for base in type(tool).__mro__ if stage in vars(base)), BaseTool)
    return owner is not BaseTool and (owner.__name__, owner.__module__) != ("BaseTool", "verl.tools.base_tool")


def _spec(tool: Any) -> ToolSpec:
    schema = getattr(tool, "tool_schema", None) or tool.get_openai_tool_schema()
    form = schema if isinstance(schema, Mapping) else schema.model_dump(exclude_unset=True, exclude_none=True)
    try:
        spec = ToolSpec.from_function(form)
    except ValueError as error:
        raise ToolsetError(str(error), where=type(tool).__name__) from error
    parameters = dict(spec.parameters)
    parameters.setdefault("type", "object")
    parameters.setdefault("properties", {})
    return ToolSpec(spec.name, spec.description, parameters)


def _created(made: Any) -> tuple[Any, Any]:
    """The id and the response of what `create` returned: one of them, both, or nothing."""
    if isinstance(made, tuple) and len(made) == 2:
        return made
    return (made, None) if results.shown_parts(made) is None else (None, made)


def _opening(response: Any) -> Message | None:
    """What create's ToolResponse shows the model before its first turn, if anything."""
    text, media = (response, ()) if isinstance(response, str) else results.shown_parts(response) or ("", ())
    return Message("user", text, media=media) if text or media else None
