"""Anthropic's tool runner, which by default has the server keep the conversation."""

import os

import anthropic
import calculator
from task import QUESTION


@anthropic.beta_tool
def calculate(expression: str) -> str:
    """Evaluates an arithmetic expression."""
    return calculator.calculator(expression)


asked = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 4096, "system": "Calculate.", "tools": [calculate]}
runner = anthropic.Anthropic().beta.messages.tool_runner(messages=[{"role": "user", "content": QUESTION}], **asked)
print("".join(block.text for block in runner.until_done().content if block.type == "text"))
