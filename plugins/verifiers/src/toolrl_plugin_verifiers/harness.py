"""The harness `verifiers`: an environment's own rollout asks the model, its rubric scores what came of it.

No HTTP lies between: the rollout's client hands a chat-completions request to a session of the gateway, in this
process. So turns are matched with what was sampled as for any agent behind the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openai.types.chat import ChatCompletion
from verifiers.clients import OpenAIChatCompletionsClient
from verifiers.errors import OverlongPromptError

from toolrl.errors import DataError, HarnessError
from toolrl.protocols import BuildContext, EpisodeContext, Model, Outcome
from toolrl.types import Score, StopReason, Task
from toolrl_plugin_gateway import chat_completions
from toolrl_plugin_gateway.dialect import RefusedError
from toolrl_plugin_gateway.session import Session
from toolrl_plugin_verifiers.dataset import EXTRA, load

STOPS: Mapping[str, StopReason] = {
    "max_turns_reached": "max_turns",
    "prompt_too_long": "context_full",
    "max_total_completion_tokens_reached": "context_full",
    "timeout_reached": "timeout",
    "has_final_env_response": "tool_done",
}
"""Of the stop conditions of verifiers; others are the environment's own: `final`."""


class ModelClient(OpenAIChatCompletionsClient):
    """A client of verifiers whose requests go to the model of one episode."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **more: Any
    ) -> ChatCompletion:
        """A sampled turn as a chat completion."""
        limits = {
            name: sampling_args[name]
            for name in ("max_tokens", "max_completion_tokens", "stop")
            if name in sampling_args
        }
        body = {"model": model, "messages": prompt, "tools": tools, **limits}
        try:
            return ChatCompletion.model_validate(await self.client.ask(chat_completions, body))
        except RefusedError as error:
            if self.client.stop is None:
                raise
            raise OverlongPromptError(error.message) from error  # The rollout ends here, and is scored.

    async def raise_from_native_response(self, response: ChatCompletion) -> None:
        """An empty turn is a turn too, with the reward that it deserves."""

    async def close(self) -> None:
        """The session belongs to its episode."""


class VerifiersHarness:
    """Follows Harness."""

    def __init__(self, options: None, context: BuildContext) -> None:
        self._where = context.where

    async def play(self, task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        """A rollout of the environment that the task comes from. Raises DataError for tasks of another data set, and
        HarnessError where the environment failed."""
        found = task.extra.get(EXTRA)
        if found is None:
            hint = "Its tasks come from the data set `verifiers`."
            raise DataError(f"task {task.id!r} is none of an environment of verifiers", where=self._where, hint=hint)
        environment = load(found["id"], found["args"], self._where)
        session = Session(episode.episode_id, task, model, episode)
        try:
            output = await environment.run_rollout(dict(found["row"]), ModelClient(session), "agent", {})
        finally:
            await session.close()
        if session.failure is not None:
            raise session.failure
        if output["error"] is not None:
            raise HarnessError(f"the environment {found['id']!r} failed: {output['error_chain']}", where=self._where)
        reward = float(output["reward"])
        metrics = {name: float(value) for name, value in (output["metrics"] or {}).items()}
        metrics.setdefault("correct", float(reward >= environment.pass_threshold))
        return Outcome(score=Score(reward, metrics=metrics), stop=session.stop or _stop(environment, output))


def _stop(environment: Any, output: Mapping[str, Any]) -> StopReason:
    single_turn = getattr(environment, "max_turns", None) == 1
    ended = None if single_turn else STOPS.get(output["stop_condition"])
    return ended or ("max_tokens" if output["is_truncated"] else "final")
