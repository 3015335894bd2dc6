"""Stand-in for verl's `verl.tools.base_tool`."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from toolrl_plugin_verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

Created = tuple[str, ToolResponse]
"""The id, and what the model sees before its first turn."""
Executed = tuple[ToolResponse, float | None, dict[str, Any] | None]
"""The answer, its step reward, its metrics."""


class BaseTool:
    """Base of verl's tools: `create`, `execute` many times, `calc_reward`, `release`.

    One object serves all episodes of a process; `instance_id` distinguishes them. Here each episode has one instance,
    from before its first turn to its end: `calc_reward` and `release` are called once, on every path.
    """

    default_schema: ClassVar[OpenAIFunctionToolSchema | None] = None
    """The spec where the tool YAML has no `tool_schema`."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        self.config = config
        self.tool_schema: Any = tool_schema or self.default_schema
        tool_schema = tool_schema or self.get_openai_tool_schema()
        if tool_schema is None:
            raise ValueError(
                f"{type(self).__name__} has no tool schema: give `tool_schema` in the tool YAML, or override "
                "get_openai_tool_schema"
            )
        self.tool_schema = tool_schema
        self.name = tool_schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """The spec that the model sees."""
        schema: OpenAIFunctionToolSchema = self.tool_schema
        return schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> Created:
        """Prepare an instance."""
        return instance_id or str(uuid.uuid4()), ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Executed:
        """Answer a call."""
        return ToolResponse(text="Updated the tool state."), 0.0, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """The instance's own reward."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Release the instance."""
