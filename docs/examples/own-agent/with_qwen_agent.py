"""Qwen-Agent, with the server's tool calls. It needs soundfile, which its installation doesn't bring."""

import json
import os
import sys

import calculator
from qwen_agent.agents import FnCallAgent
from qwen_agent.tools.base import BaseTool


class Calculator(BaseTool):
    name = "calculator"
    description = calculator.TOOL["function"]["description"]
    parameters = calculator.TOOL["function"]["parameters"]

    def call(self, params, **kwargs):
        return calculator.calculator(**self._verify_json_format_args(params))


api = {"model_server": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"], "model_type": "oai"}
agent = FnCallAgent([Calculator()], {"model": os.environ["OPENAI_MODEL"], **api, "generate_cfg": {"use_raw_api": True}})
*_, last = agent.run(json.load(sys.stdin)["messages"])
print(last[-1]["content"])
