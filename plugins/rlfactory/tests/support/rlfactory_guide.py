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


class PatientEnv(CityEnv):
    """A `step` of its own: counts, and ends the episode after a turn that gives up."""

    def __init__(self, config, centralized_actor=None):
        super().__init__(config)
        self.steps = 0

    def step(self, responses, tokenizer):
        self.steps += 1
        next_obs, dones, valid_action, is_tool = super().step(responses, tokenizer)
        for i, response in enumerate(responses):
            if dones[i] and "hm" in response:
                next_obs[i], dones[i] = "Go on.", False
        return next_obs, dones, valid_action, is_tool


class SearchTagManager(ToolManager):
    """Search-R1's form: <search>, answered by <information> as the user. It has no tools, and runs turns itself."""

    def __init__(self, verl_config):
        if isinstance(verl_config, dict):
            raise AssertionError("RLFactory's managers make OmegaConf's of a dict")
        super().__init__(verl_config)
        assert getattr(self.verl_config, "enable_thinking", True) is False

    def _build_tools(self):
        self.functions = []
        self.tool_map = {}

    @property
    def all_tools(self):
        return self.tool_map

    def parse_response(self, response_content):
        if_answer, answer = self.parse_end_flag(response_content)
        if if_answer:
            return "answer", answer
        found = re.search(r"<search>(.*?)</search>", response_content, re.DOTALL)
        if found:
            return "actions", [{"name": "search", "args": found.group(1).strip()}]
        return "answer", response_content

    def parse_end_flag(self, response_content):
        found = re.findall(r"(<answer>.*?</answer>)", response_content, re.DOTALL)
        return (True, found[-1]) if found else (False, None)

    def execute_actions(self, responses):
        actions, results = [], []
        for response in responses:
            action, content = self.parse_response(response_content=response)
            actions.append(action)
            if action == "actions":
                told = [f"\n\n<information>{POPULATION.get(tool['args'])}</information>\n\n" for tool in content]
                results.append([{"role": "user", "content": text} for text in told])
            else:
                results.append({"role": "assistant", "content": content})
        return actions, results
