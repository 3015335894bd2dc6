"""Google's ADK over LiteLLM: `[structured]`."""

import asyncio
import os
import sys

import calculator
from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import BaseModel
from task import QUESTION


class Result(BaseModel):
    value: int


def calculate(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


async def main() -> None:
    model = LiteLlm(f"openai/{os.environ['OPENAI_MODEL']}")
    more = {"output_schema": Result} if "structured" in sys.argv else {"tools": [calculate]}
    runner = InMemoryRunner(LlmAgent(name="agent", model=model, instruction="Answer.", **more), app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=QUESTION)])
    answer = ""
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        if event.is_final_response() and event.content and event.content.parts:
            answer = "".join(part.text or "" for part in event.content.parts)
    print(Result.model_validate_json(answer).value if "structured" in sys.argv else answer)


asyncio.run(main())
