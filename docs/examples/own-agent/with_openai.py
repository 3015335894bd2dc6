"""A loop of twenty lines: with_openai.py:play for the harness python, `python with_openai.py` for command."""

import asyncio
import json
import os
import sys

from calculator import TOOL, calculator
from openai import AsyncOpenAI

client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY", "set for each episode"))


async def answer(api, model, messages):
    while True:
        completion = await api.chat.completions.create(model=model, messages=messages, tools=[TOOL])
        message = completion.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = calculator(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def play(episode):
    api = client.with_options(base_url=episode.base_url, api_key=episode.api_key)
    return await answer(api, episode.model, episode.messages)


if __name__ == "__main__":
    print(asyncio.run(answer(client, os.environ["OPENAI_MODEL"], json.load(sys.stdin)["messages"])))
