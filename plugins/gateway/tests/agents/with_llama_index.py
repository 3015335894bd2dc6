"""LlamaIndex's FunctionAgent."""

import asyncio
import os

import calculator
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from task import QUESTION


def calculate(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


async def main() -> None:
    access = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    llm = OpenAILike(model=os.environ["OPENAI_MODEL"], is_chat_model=True, is_function_calling_model=True, **access)
    print(await FunctionAgent(tools=[calculate], llm=llm, system_prompt="Answer.").run(QUESTION))


asyncio.run(main())
