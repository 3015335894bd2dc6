"""Classes as users of RLFactory write them, by its guide; only their import lines were changed."""

import json
import re

# from .base import Env
from toolrl_plugin_rlfactory.envs import Env

# from envs.tool_manager.base_manager import ToolManager
from toolrl_plugin_rlfactory.managers import QwenManager, ToolManager

POPULATION = {"Oslo": "717710", "Bergen": "291940"}


class Lookup:
    name = "facts-lookup"
    description = "Looks up how many people live in a city."
    parameters = [{"name": "city", "type": "string", "description": "The city", "required": True}]  # noqa: RUF012

    @property
    def function(self):
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def call(self, params, **kwargs):
        return POPULATION[json.loads(params)["city"]]


class CityManager(QwenManager):
    """Tools of its own, in RLFactory's way."""

    def _build_tools(self):
        self.tool_map = {"facts-lookup": Lookup()}
        self.functions = [tool.function for tool in self.tool_map.values()]


class SquareManager(ToolManager):
    """A manager from the base up, with a form of its own: [[lookup {"city": …}]]."""

    def __init__(self, verl_config):
        super().__init__(verl_config)
        self.seen = []

    def get_tool(self, name_or_short_name):
        return self.tool_map.get(name_or_short_name, None)

    @property
    def all_tools(self):
        return self.tool_map

    def _build_tools(self):
        self.tool_map = {"lookup": Lookup()}

    def parse_response(self, response_content):
        if "BROKEN" in response_content:
            raise ValueError("no brackets")
        tools = self.parse_tools(response_content)
        return ("actions", tools) if tools else ("answer", response_content)

    def parse_tools(self, response):
        found = re.findall(r"\[\[(\w+) (.*?)\]\]", response)
        return [{"name": name, "args": args} for name, args in found]

    def execute_actions(self, responses):
        actions, results = [], []
        for response in responses:
            action, tools = self.parse_response(response_content=response)
            actions.append(action)
            if action == "answer":
                results.append({"role": "assistant", "content": tools})
                continue
            self.seen += [tool["name"] for tool in tools]
            results.append([{"role": "tool", "content": self._call_tool(tool["name"], tool["args"])} for tool in tools])
        return actions, results

    def get_prompt(self, input_data, tokenizer, mode="initial", add_generation_prompt=True):
        raise AssertionError("the chat format writes prompts")


class CityEnv(Env):
    """The guide's SearchEnv: rules of its own, without `if_val`."""

    def __init__(self, config):
        super().__init__(config)
        self.use_verify_tool = False

    # NOTE: Add your reward calculation rules here!
    def _compute_score_with_rules(self, data, tokenizer):
        def compute_score_em(solution_str, ground_truth):
            found = re.findall(r"<answer>(.*?)</answer>", solution_str, re.DOTALL)
            return float(bool(found) and found[-1].strip() in ground_truth["target"])

        scores = []
        for i in range(len(data)):
            data_item = data[i]  # DataProtoItem
            processed_data = self._process_data(data_item=data_item, tokenizer=tokenizer)
            ground_truth, response_str = processed_data["ground_truth"], processed_data["response_str"]
            scores.append([compute_score_em(response_str, ground_truth)])
        return scores

    def get_step_reward(self, responses, format_score=0.1):
        return [format_score if "<tool_call>" in response else float("nan") for response in responses]
