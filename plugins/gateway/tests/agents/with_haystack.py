"""Haystack's Agent: `chat|responses`."""

import os
import sys
from typing import Annotated

import calculator
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from task import QUESTION


@tool
def calculate(expression: Annotated[str, "arithmetic"]) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


Generator = OpenAIResponsesChatGenerator if sys.argv[1] == "responses" else OpenAIChatGenerator
generator = Generator(model=os.environ["OPENAI_MODEL"], api_base_url=os.environ["OPENAI_BASE_URL"])
agent = Agent(chat_generator=generator, tools=[calculate])
print(agent.run(messages=[ChatMessage.from_user(QUESTION)])["last_message"].text)
