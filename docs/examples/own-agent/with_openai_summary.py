"""A loop that replaces its history by the model's own summary once a tool has answered: two trajectories an episode."""

import json
import os
import sys

from calculator import TOOL, calculator
from openai import OpenAI

api, model = OpenAI(), os.environ["OPENAI_MODEL"]
task = json.load(sys.stdin)["messages"]


def ask(messages):
    message = api.chat.completions.create(model=model, messages=messages, tools=[TOOL]).choices[0].message
    messages.append(message)
    return message


messages = list(task)
for call in ask(messages).tool_calls or ():
    result = calculator(**json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
messages.append({"role": "user", "content": "Summarise what you know."})
summary = ask(messages).content
print(ask([*task, {"role": "user", "content": f"You found out: {summary}"}]).content)
