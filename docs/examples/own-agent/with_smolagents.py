"""smolagents: `python with_smolagents.py code|tools`. Its memory repeats each call as text, which the model didn't
sample. Without these repetitions the code agent is one trajectory; the tool-calling agent opens one for each turn."""

import json
import os
import sys

import calculator
from smolagents import ActionStep, CodeAgent, LogLevel, OpenAIServerModel, ToolCallingAgent, tool


def forget_repetition(step, agent):
    step.tool_calls = None


api = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
model = OpenAIServerModel(os.environ["OPENAI_MODEL"], **api)
options = {"tools": [tool(calculator.calculator)], "model": model, "max_steps": 6, "verbosity_level": LogLevel.OFF}
if sys.argv[1] == "code":
    agent = CodeAgent(**options, step_callbacks={ActionStep: forget_repetition})
else:
    agent = ToolCallingAgent(**options)
print(agent.run(json.load(sys.stdin)["messages"][-1]["content"]))
