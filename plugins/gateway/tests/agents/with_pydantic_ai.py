"""pydantic-ai: `chat|responses|anthropic [stream] [structured]`."""

import os
import sys

import calculator
from pydantic import BaseModel
from pydantic_ai import Agent, PromptedOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from task import QUESTION


class Result(BaseModel):
    value: int


kinds = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel, "anthropic": AnthropicModel}
model = kinds[sys.argv[1]](os.environ["OPENAI_MODEL"])
structured = "structured" in sys.argv
agent = Agent(model, output_type=PromptedOutput(Result) if structured else str, retries=2)


@agent.tool_plain
def calculate(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


streamed = "stream" in sys.argv
result = agent.run_stream_sync(QUESTION).get_output() if streamed else agent.run_sync(QUESTION).output
print(result.value if structured else result)
