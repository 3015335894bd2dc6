"""Stand-ins for verl's `verl.tools.schemas`: the OpenAI form of a tool, of a call, and a tool's answer."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class OpenAIFunctionPropertySchema(BaseModel):
    """One parameter."""

    model_config = ConfigDict(extra="allow")

    type: str | list[str] | None = None
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(BaseModel):
    """The parameters: a JSON Schema of type object."""

    model_config = ConfigDict(extra="allow")

    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema] = Field(default_factory=dict)
    required: list[str] = Field(default_factory=list)


class OpenAIFunctionSchema(BaseModel):
    """The function."""

    name: str
    description: str
    parameters: OpenAIFunctionParametersSchema = Field(default_factory=OpenAIFunctionParametersSchema)
    strict: bool = False


class OpenAIFunctionToolSchema(BaseModel):
    """A tool."""

    type: str = "function"
    function: OpenAIFunctionSchema


class OpenAIFunctionParsedSchema(BaseModel):
    """A call as a parser reads it, its arguments as JSON text."""

    name: str
    arguments: str


class OpenAIFunctionCallSchema(BaseModel):
    """A call with its arguments read."""

    name: str
    arguments: dict[str, Any]

    @staticmethod
    def from_openai_function_parsed_schema(parsed_schema: OpenAIFunctionParsedSchema) -> tuple[Any, bool]:
        """The call, and True where its arguments are no JSON object; then they are empty."""
        try:
            read = json.loads(parsed_schema.arguments)
        except ValueError:
            read = None
        wrong = not isinstance(read, dict)
        return OpenAIFunctionCallSchema(name=parsed_schema.name, arguments={} if wrong else read), wrong


class OpenAIFunctionToolCall(BaseModel):
    """A call with its id."""

    id: str
    type: Literal["function"] = "function"
    function: OpenAIFunctionCallSchema | OpenAIFunctionParsedSchema


def function_schema(name: str, description: str, **properties: dict[str, Any]) -> OpenAIFunctionToolSchema:
    """The spec of a function whose parameters are all required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": parameters}
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})


class ToolResponse(BaseModel):
    """What `execute` answers: a text, images, videos."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, values: Any) -> Any:
        for key in ("image", "video"):
            given = values.get(key) if isinstance(values, dict) else None
            if given is not None and not isinstance(given, list):
                raise ValueError(f"{key} has to be a list, got {type(given).__name__}; write [{key}] for a single one")
        return values

    def is_empty(self) -> bool:
        """True where there is nothing in it."""
        return not self.text and not self.image and not self.video

    def is_text_only(self) -> bool:
        """True where there is a text and nothing else."""
        return bool(self.text) and not self.image and not self.video
