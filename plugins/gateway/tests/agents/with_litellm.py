"""LiteLLM: `openai|openai/responses|anthropic`. It may print to stdout."""

import json
import os
import sys

import litellm
from calculator import TOOL, calculator
from task import QUESTION

messages = [{"role": "user", "content": QUESTION}]
while True:
    model = f"{sys.argv[1]}/{os.environ['OPENAI_MODEL']}"
    message = litellm.completion(model=model, messages=messages, tools=[TOOL]).choices[0].message
    messages.append(message.model_dump())
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        result = calculator(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(message.content)
