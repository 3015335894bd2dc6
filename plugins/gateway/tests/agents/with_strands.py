"""Strands Agents: raises if a turn is cut."""

import os

import calculator
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from task import QUESTION


@tool
def calculate(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


access = {"api_key": os.environ["OPENAI_API_KEY"], "base_url": os.environ["OPENAI_BASE_URL"]}
model = OpenAIModel(client_args=access, model_id=os.environ["OPENAI_MODEL"])
print(str(Agent(model=model, tools=[calculate], callback_handler=None)(QUESTION)).strip())
