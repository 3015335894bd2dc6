"""AutoGen's AssistantAgent."""

import asyncio
import os

import calculator
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from task import QUESTION


async def calculate(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


async def main() -> None:
    known = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown"}
    info = ModelInfo(structured_output=True, **known)
    model = OpenAIChatCompletionClient(
        model=os.environ["OPENAI_MODEL"], base_url=os.environ["OPENAI_BASE_URL"], model_info=info
    )
    agent = AssistantAgent("agent", model, tools=[calculate], max_tool_iterations=5)
    print((await agent.run(task=QUESTION)).messages[-1].content)


asyncio.run(main())
