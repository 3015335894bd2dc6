"""CrewAI: `[structured]`."""

import os
import sys

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"

import calculator
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from pydantic import BaseModel
from task import QUESTION


class Result(BaseModel):
    value: int


@tool("calculate")
def calculate(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


structured = "structured" in sys.argv
llm = LLM(model=f"openai/{os.environ['OPENAI_MODEL']}", base_url=os.environ["OPENAI_BASE_URL"])
agent = Agent(role="calculator", goal="Answer.", backstory="You calculate.", tools=[calculate], llm=llm)
more = {"output_pydantic": Result} if structured else {}
task = Task(description=QUESTION, expected_output="The number.", agent=agent, **more)
result = Crew(agents=[agent], tasks=[task], verbose=False).kickoff()
print(result.pydantic.value if structured else result.raw)
