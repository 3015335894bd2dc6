"""Anthropic's SDK: streamed messages with thinking, which is sent back."""

import json
import os
import sys

import anthropic
from calculator import TOOL, calculator

api = anthropic.Anthropic()
function = TOOL["function"]
tool = {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
options = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 2048, "tools": [tool]}
messages = json.load(sys.stdin)["messages"]
while True:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with api.messages.stream(messages=messages, thinking=thinking, **options) as stream:
        message = stream.get_final_message()
    messages.append({"role": "assistant", "content": message.content})
    calls = [block for block in message.content if block.type == "tool_use"]
    if not calls:
        break
    results = [{"type": "tool_result", "tool_use_id": it.id, "content": calculator(**it.input)} for it in calls]
    messages.append({"role": "user", "content": results})
print("".join(block.text for block in message.content if block.type == "text"))
