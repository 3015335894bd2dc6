"""The harness `python`: a function of the user's plays the episodes, in this process."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from toolrl.protocols import BuildContext, Outcome
from toolrl.tools.threads import POOL
from toolrl.types import Task
from toolrl_common.user_classes import load_object
from toolrl_plugin_gateway.harness import MODEL, GatewayHarness, as_json
from toolrl_plugin_gateway.options import PythonOptions
from toolrl_plugin_gateway.session import Session


@dataclass(frozen=True, slots=True)
class AgentEpisode:
    """What an agent needs to play one episode."""

    task: Task
    messages: list[dict[str, Any]]
    """Of the task, in OpenAI's form; the agent's own list."""
    base_url: str
    """For `OpenAI(base_url=…)` and for `Anthropic(base_url=…)`."""
    api_key: str
    """Names this episode, and is valid until it ends. It asks the model and can't set the reward."""
    model: str
    """The model's name for requests."""
    notes: dict[str, Any]
    """Becomes `Episode.notes`, for rewards and the record."""
    training: bool
    """False in evaluation."""
    reward_key: str = ""
    """For `POST {base_url}/reward`, once; keep it from commands that the model writes."""


class PythonHarness(GatewayHarness):
    """Follows Harness."""

    waits_for_agents = False

    def __init__(self, options: PythonOptions, context: BuildContext) -> None:
        """Imports the function. Raises ConfigError."""
        super().__init__(options, context)
        self._target = options.target
        self._play = load_object(options.target, context.where)

    async def run(self, session: Session) -> Outcome:
        """See GatewayHarness."""
        episode = AgentEpisode(
            task=session.task,
            messages=as_json(session.task.messages),
            base_url=f"{self.gateway.url}/v1",
            api_key=session.key,
            model=MODEL,
            notes=session.context.notes,
            training=session.context.training,
            reward_key=session.reward_key,
        )
        asynchronous = inspect.iscoroutinefunction(self._play)
        ended = self._play(episode) if asynchronous else await POOL.submit(self._play, episode)
        result = await ended if inspect.isawaitable(ended) else ended
        match result:
            case Outcome():
                return result
            case None | str():
                return Outcome(answer=result)
        raise TypeError(f"{self._target} returned {type(result).__name__}, expected None, a text or an Outcome")
