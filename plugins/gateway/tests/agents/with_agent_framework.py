"""Microsoft's Agent Framework: `chat|responses`."""

import asyncio
import os
import sys

import calculator
from agent_framework import tool
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from task import QUESTION


@tool(approval_mode="never_require")
def calculate(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


async def main() -> None:
    Client = OpenAIChatClient if sys.argv[1] == "responses" else OpenAIChatCompletionClient
    client = Client(model=os.environ["OPENAI_MODEL"], base_url=os.environ["OPENAI_BASE_URL"])
    print((await client.as_agent(instructions="Answer.", tools=[calculate]).run(QUESTION)).text)


asyncio.run(main())
