"""The Agents SDK: `python with_openai_agents.py chat|responses|handoff`. A hand-off asks under other instructions and
tools, which is a trajectory of its own."""

import json
import os
import sys

import calculator
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
kind = sys.argv[1]
Model = OpenAIResponsesModel if kind == "responses" else OpenAIChatCompletionsModel
model = Model(os.environ["OPENAI_MODEL"], AsyncOpenAI())
agent = Agent("expert", instructions="Answer.", model=model, tools=[function_tool(calculator.calculator)])
if kind == "handoff":
    agent = Agent("desk", instructions="Hand the question over.", model=model, handoffs=[agent])
prompt = json.load(sys.stdin)["messages"][-1]["content"]
print(Runner.run_sync(agent, prompt, max_turns=8).final_output)
