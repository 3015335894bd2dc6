"""A verl tool as a tool of toolrl: one instance an episode, whichever of verl's signatures it was written for.

| | the guides' | 0.9.1's |
|---|---|---|
| create | `create(instance_id, ground_truth, **kwargs) -> id` | `create(create_kwargs={…}) -> (id, ToolResponse)` |
| execute | `execute(instance_id, parameters, **kwargs) -> (text, reward, metrics)` | `execute(instance_id, args, \
agent_data=…) -> (ToolResponse, reward, metrics)` |

All tools of an episode get one instance_id, its `agent_data.request_id`, unless their own `create` gives another.
A tool that takes `**kwargs` gets the task's create_kwargs one by one, and as `create_kwargs`, too; one without gets
what it names. Everything that a stage gets is a copy: a tool that changes its kwargs changes them for no other episode.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from toolrl.errors import ToolsetError
from toolrl.protocols import EpisodeContext
from toolrl.rollouts.notes import plain_notes
from toolrl.tools import Tool
from toolrl.types import Media, Message, ToolResult, ToolSpec
from toolrl_common.images import load_image
from toolrl_common.user_classes import accepted
from toolrl_plugin_verl import results
from toolrl_plugin_verl.tools.base_tool import BaseTool

SECONDS = 300.0
"""Default time limit of a call. verl has none; here a call that hangs doesn't block the run."""
EXTRA_FIELDS = "extra_fields"
"""The key of `Episode.notes` that holds them."""
REWARD_SCORES = "rollout_reward_scores"
"""The key that holds what each tool's calc_reward gave, by the tool's name."""
_SHARED = "verl_agent_data"
_log = logging.getLogger(__name__)
_warned: set[str] = set()


@dataclass
class AgentData:
    """One for each episode, shared by its tools; gone when the episode ends."""

    request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """The instance_id that the episode's tools get, too."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The task's messages, before the first turn."""
    tools_kwargs: dict[str, Any] = field(default_factory=dict)
    """Of the task."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """For the tools' own use."""
    tool_rewards: list[float] = field(default_factory=list)
    """What `execute` gave so far."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """State from one call to the next; other tools of the episode see it, and the reward function in `extra_info`."""
    turn_scores: list[float] = field(default_factory=list)
    """Empty: in verl an interaction fills it."""
    media: tuple[Media, ...] = ()
    """Of the task's messages, and of what tools answered."""

    @cached_property
    def image_data(self) -> list[Any]:
        """The task's images and those that tools answered so far, as PIL images. Raises ChatFormatError for one that
        can't be read."""
        return [load_image(item.data, "agent_data.image_data") for item in self.media if item.kind == "image"]

    @cached_property
    def video_data(self) -> list[Any]:
        """The videos of the task's messages, as the data set gives them."""
        return [item.data for item in self.media if item.kind == "video"]

    def answered(self, media: Sequence[Media]) -> None:
        """Take in the images of a tool's answer."""
        images = tuple(item for item in media if item.kind == "image")
        self.media += images
        if "image_data" in vars(self):
            self.image_data.extend(load_image(item.data, "agent_data.image_data") for item in images)

    def hand_on(self, episode: EpisodeContext, hide: Callable[[str], str]) -> None:
        """Note `extra_fields` for the reward function and the record. Warns of what JSON can't hold."""
        for key, value in list(self.extra_fields.items()):
            try:
                noted = plain_notes({key: value}, hide)
                episode.notes.setdefault(EXTRA_FIELDS, {}).update(noted)
            except ToolsetError:
                if str(key) not in _warned:
                    _warned.add(str(key))
                    kind = type(value).__name__
                    _log.warning("agent_data.extra_fields[%r] is %s and doesn't reach the reward", key, kind)


def agent_data_of(episode: EpisodeContext) -> AgentData:
    """The episode's, made when it is first asked for."""
    task, found = episode.task, episode.shared.get(_SHARED)
    if not isinstance(found, AgentData):
        found = episode.shared[_SHARED] = AgentData(
            messages=[{"role": message.role, "content": message.content} for message in task.messages],
            media=tuple(item for message in task.messages for item in message.media),
            tools_kwargs=copy.deepcopy({tool: dict(stages) for tool, stages in task.tools_kwargs.items()}),
        )
    return found


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
        self._has_reward = _overrides(tool, "calc_reward")

    async def create(  # type: ignore[override]
        self, instance_id: str, /, *, toolrl_episode: EpisodeContext, **create_kwargs: Any
    ) -> Message | None:
        agent = agent_data_of(toolrl_episode)
        instance = self._instances[instance_id] = _Instance(agent.request_id, agent, toolrl_episode)
        given = copy.deepcopy(create_kwargs)
        args, kwargs = _create_arguments(self._tool.create, instance.id, given)
        made = await self._loop.call(self._tool.create, *args, **kwargs)
        own_id, response = _created(made)
        if args or "instance_id" in kwargs:  # One that gets none keeps nothing by it, and may give the same each time.
            self._check_id(own_id)
        instance.id = instance.id if own_id is None else own_id
        instance.created = True
        return _opening(response)

    async def execute(  # type: ignore[override]
        self, instance_id: str, parameters: dict[str, Any], /, **execute_kwargs: Any
    ) -> ToolResult:
        instance, execute = self._instances[instance_id], self._tool.execute
        given = copy.deepcopy(dict(parameters))
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
        reward = results.number(value)
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

    def _check_id(self, own_id: Any) -> None:
        if any(other.created and other.id == own_id for other in self._instances.values()):
            problem = f"create() gave the id {own_id!r:.80}, which another episode's instance has"
            hint = "Use the instance_id that create gets, or a new uuid each time."
            raise ToolsetError(problem, where=self.name_of_tool, hint=hint)

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
    create: Any, instance_id: str, create_kwargs: dict[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """What `create` gets. Kwargs that it doesn't take are left out where it takes them as `create_kwargs`; else Python
    rejects them."""
    kwargs, parameters = dict(create_kwargs), inspect.signature(create).parameters
    if accepted(create, {"create_kwargs": None}):
        kwargs = accepted(create, {"create_kwargs": copy.deepcopy(create_kwargs), **kwargs})
    first = next((parameter.name for parameter in _positional(create)), "create_kwargs")
    if first != "create_kwargs" and first not in create_kwargs:
        kwargs.pop("instance_id", None)
        return (instance_id,), kwargs
    if "instance_id" in parameters:
        kwargs["instance_id"] = instance_id
    return (), kwargs


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


# verl's tools are coroutines, and many of them block: `requests.post` in an `async def` is common. On the run's own
# loop each such call would hold up every episode. In a thread of their own they hold up the toolset's other calls, and
# what they keep (sessions, locks, dicts of instances) is still only ever used from one thread.


STOP_SECONDS = 10.0
"""How long stopping waits for what runs; a function that blocks can't be interrupted."""
_log = logging.getLogger(__name__)


class LoopThread:
    """Start it, `call` functions in it from one other event loop, stop it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Does nothing where it runs."""
        if self._thread is None:
            runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self._loop = runner.get_loop()
            self._thread = threading.Thread(target=_run, args=(runner,), name=self._name, daemon=True)
            self._thread.start()

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """What a function or a coroutine function gives there. Cancelling the caller cancels the coroutine."""
        if self._loop is None:
            raise RuntimeError(f"{self._name} doesn't run: start() comes first")
        future = asyncio.run_coroutine_threadsafe(_called(function, args, kwargs), self._loop)
        return await asyncio.wrap_future(future)

    async def stop(self) -> None:
        """Cancel what runs, and end. Does nothing where it doesn't run."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        ended = asyncio.get_running_loop().run_in_executor(None, thread.join, STOP_SECONDS)
        await asyncio.shield(ended)
        if thread.is_alive():
            _log.warning("%s: a tool still blocks after %g s; its thread is left behind", self._name, STOP_SECONDS)


def _run(runner: asyncio.Runner) -> None:
    with runner:  # What still runs at its end is cancelled.
        runner.get_loop().run_forever()


async def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        # The first two would end the thread, with every other call in it.
        raise RuntimeError(f"the tool raised {type(error).__name__}: {error}") from error
