"""What verl's demonstration tools have in common: an answer is scored, and one no better than the last costs."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from toolrl_plugin_verl.tools.base_tool import BaseTool, Created, Executed
from toolrl_plugin_verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

ANSWER = {"type": "string", "description": "The answer to the question"}
PENALTY = 0.05


@dataclass
class _State:
    ground_truth: Any
    response: str = ""
    reward: float = 0.0


class ScoringTool(BaseTool):
    """Scores each answer by the subclass's `grade`."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        super().__init__(config, tool_schema)
        self._states: dict[str, _State] = {}

    def grade(self, answer: str, ground_truth: Any) -> float:
        """The answer's score."""
        raise NotImplementedError

    async def create(self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any) -> Created:
        instance_id = instance_id or str(uuid.uuid4())
        if ground_truth is None:
            ground_truth = (kwargs.get("create_kwargs") or {}).get("ground_truth")
        self._states[instance_id] = _State(ground_truth)
        return instance_id, ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Executed:
        answer = parameters.get("answer", "")
        state = self._states[instance_id]
        state.response = answer if isinstance(answer, str) else str(answer)
        answer, reward = state.response, self.grade(state.response, state.ground_truth)
        improved = reward > state.reward
        state.reward = reward
        return ToolResponse(text=f"Current parsed {answer=} {reward=}"), 0.0 if improved else -PENALTY, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Of the last answer."""
        state = self._states[instance_id]
        return self.grade(state.response, state.ground_truth) if state.response else 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self._states.pop(instance_id, None)
