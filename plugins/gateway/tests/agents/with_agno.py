"""agno: `chat|responses [structured]`. It logs to stdout, and ends with status 0 if the model refuses."""

import os
import sys

import calculator
from agno.agent import Agent
from agno.models.openai import OpenAIChat, OpenAIResponses
from pydantic import BaseModel
from task import QUESTION


class Result(BaseModel):
    value: int


def calculate(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


Model = OpenAIResponses if "responses" in sys.argv else OpenAIChat
model = Model(id=os.environ["OPENAI_MODEL"], base_url=os.environ["OPENAI_BASE_URL"])
structured = "structured" in sys.argv
agent = Agent(model=model, tools=[calculate], telemetry=False, output_schema=Result if structured else None)
content = agent.run(QUESTION).content
print(content.value if isinstance(content, Result) else content)
