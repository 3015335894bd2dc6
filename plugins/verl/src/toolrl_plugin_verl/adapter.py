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

import copy
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolrl.errors import ToolsetError
from toolrl.protocols import EpisodeContext
from toolrl.tools import Tool
from toolrl.types import Message, ToolResult, ToolSpec
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
        self._taken: Counter[Any] = Counter()
        """The ids in use."""
        self._signatures = {stage: _Signature(getattr(tool, stage)) for stage in _STAGES}
        self._takes_whole = _names_create_kwargs(type(tool))
        self._has_reward = _overrides(tool, "calc_reward")
        self._told_id = False

    async def create(  # type: ignore[override]
        self, instance_id: str, /, *, toolrl_episode: EpisodeContext, **create_kwargs: Any
    ) -> Message | None:
        agent = agent_data_of(toolrl_episode)
        instance = self._instances[instance_id] = _Instance(agent.request_id, agent, toolrl_episode)
        signature = self._signatures["create"]
        args, kwargs = signature.for_create(instance.id, copy.deepcopy(create_kwargs), whole=self._takes_whole)
        made = await self._loop.call(self._tool.create, *args, **kwargs)
        own_id, response = _created(made)
        if own_id is not None:
            self._check_id(own_id)
            instance.id = own_id
        self._taken[instance.id] += 1
        instance.created = True
        return _opening(response)

    async def execute(  # type: ignore[override]
        self, instance_id: str, parameters: dict[str, Any], /, **execute_kwargs: Any
    ) -> ToolResult:
        instance, signature = self._instances[instance_id], self._signatures["execute"]
        given: Any = copy.deepcopy(dict(parameters))
        if signature.wants_text(1):
            given = json.dumps(given, ensure_ascii=False)
        kwargs = signature.accepted({**copy.deepcopy(execute_kwargs), "agent_data": instance.agent})
        returned = await self._loop.call(self._tool.execute, instance.id, given, **kwargs)
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
            if instance.created:
                self._taken -= Counter([instance.id])
            instance.agent.hand_on(instance.episode, self._hide)

    @property
    def name_of_tool(self) -> str:
        """What the model calls it."""
        assert self.spec is not None
        return self.spec.name

    def _check_id(self, own_id: Any) -> None:
        """Raises ToolsetError for an id that another episode's instance has, where the tool could have used ours."""
        if own_id not in self._taken:
            return
        problem = f"create() gave the id {own_id!r:.80}, which another episode's instance has"
        if not self._signatures["create"].takes_kwargs_alone:
            hint = "Use the instance_id that create gets, or a new uuid each time."
            raise ToolsetError(problem, where=self.name_of_tool, hint=hint)
        if not self._told_id:
            # Written for one instance a call, such a tool keeps nothing by its id, or mixed it up in verl, too.
            self._told_id = True
            _log.warning("tool %r: %s; what it keeps under it is shared", self.name_of_tool, problem)

    async def _stage(self, stage: str, instance_id: str, kwargs: Mapping[str, Any]) -> Any:
        accepted = self._signatures[stage].accepted(copy.deepcopy(dict(kwargs)))
        return await self._loop.call(getattr(self._tool, stage), self._instances[instance_id].id, **accepted)


_STAGES = ("create", "execute", "calc_reward", "release")


class _Signature:
    """What a stage of a tool takes."""

    def __init__(self, method: Any) -> None:
        self._parameters = inspect.signature(method).parameters
        kinds = {parameter.kind for parameter in self._parameters.values()}
        self._any = inspect.Parameter.VAR_KEYWORD in kinds
        self._positional = [
            name
            for name, parameter in self._parameters.items()
            if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        ]

    def accepted(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Those that it takes: all with `**kwargs`, else those it names."""
        return kwargs if self._any else {key: value for key, value in kwargs.items() if key in self._parameters}

    @property
    def takes_kwargs_alone(self) -> bool:
        """True for `create(create_kwargs)`, which gets no id."""
        return self._positional[:1] == ["create_kwargs"] and "instance_id" not in self._parameters

    def for_create(
        self, instance_id: str, create_kwargs: dict[str, Any], *, whole: bool
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Arguments of `create`. What it doesn't take is left out where it takes them as `create_kwargs`; else Python
        rejects it. `whole`: `**kwargs` are to hold `create_kwargs`, too."""
        kwargs = dict(create_kwargs)
        if "create_kwargs" in self._parameters or (whole and self._any):
            kwargs.setdefault("create_kwargs", copy.deepcopy(create_kwargs))
            kwargs = self.accepted(kwargs)
        first = self._positional[0] if self._positional else None
        if first is None or first == "create_kwargs" or first in create_kwargs:
            if "instance_id" in self._parameters:
                kwargs["instance_id"] = instance_id
            return (), kwargs
        kwargs.pop("instance_id", None)
        return (instance_id,), kwargs

    def wants_text(self, position: int) -> bool:
        """True where a positional parameter is annotated as `str`, as verl's first tools had `parameters`."""
        if len(self._positional) <= position:
            return False
        return self._parameters[self._positional[position]].annotation in (str, "str")


def _names_create_kwargs(cls: type) -> bool:
    """True where code of the class or of a base, other than BaseTool, has the text `create_kwargs`, as in
    `kwargs["create_kwargs"]`: what was written for verl before it handed them in whole doesn't."""
    members = [member for base in cls.__mro__ if base is not BaseTool for member in vars(base).values()]
    codes = [function.__code__ for function in map(inspect.unwrap, filter(inspect.isfunction, members))]
    for code in codes:
        if any(item == "create_kwargs" or item == ("create_kwargs",) for item in code.co_consts):
            return True
        codes.extend(item for item in code.co_consts if inspect.iscode(item))  # Of lambdas and comprehensions.
    return False


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
    return (None, made) if results.is_response(made) else (made, None)


def _opening(response: Any) -> Message | None:
    """What create's ToolResponse shows the model before its first turn, if anything."""
    if isinstance(response, str):
        return Message("user", response) if response else None
    if not results.is_response(response):
        return None
    text, media = results.text_of(response), results.media_of(response)
    return Message("user", text, media=media) if text or media else None
