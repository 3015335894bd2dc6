"""DSPy's ReAct. Its cache answers equal questions of later episodes."""

import os

import calculator
import dspy
from task import QUESTION


def calculate(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


access = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
dspy.configure(lm=dspy.LM(f"openai/{os.environ['OPENAI_MODEL']}", cache=False, **access))
print(dspy.ReAct("question -> answer: int", tools=[calculate])(question=QUESTION).answer)
