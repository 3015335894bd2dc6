"""instructor: `TOOLS|JSON|JSON_SCHEMA`. It asks again if the answer is badly formatted."""

import os
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel
from task import QUESTION


class Result(BaseModel):
    value: int


client = instructor.from_openai(OpenAI(), mode=getattr(instructor.Mode, sys.argv[1]))
asked = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": QUESTION}]}
print(client.chat.completions.create(response_model=Result, max_retries=3, **asked).value)
