"""Stand-ins for RLFactory's environments, to derive from.

    from .base import Env                             in a file of the user's, or
    from toolrl_plugin_rlfactory.envs import Env

`DataProto` stands for verl's, as far as `_compute_score_with_rules` and `_process_data` read it.
"""

from __future__ import annotations

import json
import math
import re
import string
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.user_classes import accepted, import_hint
from toolrl_plugin_rlfactory.loading import load_class, manager_class
from toolrl_plugin_rlfactory.managers import ManagerConfig, ToolManager
from toolrl_plugin_rlfactory.options import EnvOptions
from toolrl_plugin_rlfactory.reading import last_answer

__all__ = ["TOOL_ENV_REGISTRY", "BaseEnv", "DataItem", "DataProto", "Env", "SearchEnv"]


@dataclass
class DataItem:
    """One episode, as verl's DataProtoItem: `batch` holds tensors, `non_tensor_batch` the row."""

    prompt_str: str
    response_str: str
    ids: tuple[Sequence[int], Sequence[int]]
    """Of the prompt and of the response."""
    non_tensor_batch: dict[str, Any]

    @cached_property
    def batch(self) -> dict[str, Any]:
        """`prompts`, `responses`, `input_ids` and `attention_mask`: tensors of one sequence each, without padding.
        Needs torch."""
        import torch

        prompts, responses = (torch.tensor(tuple(ids), dtype=torch.int64) for ids in self.ids)
        whole = torch.cat([prompts, responses])
        mask = torch.ones_like(whole)
        return {"prompts": prompts, "responses": responses, "input_ids": whole, "attention_mask": mask}


class DataProto(list[DataItem]):
    """A batch of them, to go through one by one."""


class Env:
    """RLFactory's Env: a tool manager, and what turns and episodes are worth."""

    def __init__(self, config: Any, centralized_actor: Any = None) -> None:
        self.config = config if isinstance(config, ManagerConfig) else ManagerConfig(config)
        self.tool_manager: ToolManager = manager_class(self.config.get("tool_manager") or "adaptive")(
            verl_config=self.config
        )
        self.max_prompt_length = self.config.get("max_prompt_length", 2048)
        self.use_verify_tool = False
        self.use_process_reward = self.config.get("use_process_reward", False)

    def verify_tool(self, data_source: Any, solution_str: str, ground_truth: Any, extra_info: Any) -> Any:
        """What a tool finds out about a solution; asked where `use_verify_tool` is set."""
        raise NotImplementedError

    def get_step_reward(self, responses: Sequence[str], format_score: float = 0.1) -> list[float]:
        """What each turn is worth; NaN for nothing to say."""
        return [1.0] * len(responses)

    def step(
        self, responses: Sequence[str], tokenizer: Any = None, image_data: Any = None, processor: Any = None
    ) -> tuple[list[str], list[bool], list[int], list[int]]:
        """Observations, whether the episode is over, whether an action is valid, whether it is a tool's."""
        actions, results = self.tool_manager.execute_actions(responses=responses)
        if unknown := set(actions) - {"answer", "error", "actions"}:
            raise ValueError(f"Unexpected action: {unknown.pop()}")
        observations = [
            "" if action == "answer" else self.tool_manager.get_prompt(result, tokenizer, mode="tool_call")
            for action, result in zip(actions, results, strict=True)
        ]
        done, ran = [action == "answer" for action in actions], [int(action == "actions") for action in actions]
        return observations, done, ran, [int(action != "error") for action in actions]

    def compute_score(
        self,
        reward_rollout_wg: Any,
        reward_tokenizer: Any,
        tokenizer: Any,
        data: DataProto,
        if_val: bool = False,
        use_process_reward: bool = False,
    ) -> list[list[float]]:
        """The scores of each episode, by rules."""
        if reward_rollout_wg is not None:
            raise NotImplementedError("there is no reward model to ask; score by rules, or with the reward `llm_judge`")
        rules: Callable[..., list[list[float]]] = self._compute_score_with_rules
        return rules(**accepted(rules, {"data": data, "tokenizer": tokenizer, "if_val": if_val}))

    def _compute_score_with_rules(self, data: DataProto, tokenizer: Any, if_val: bool = False) -> list[list[float]]:
        return [[0.0]] * len(data)

    def _process_data(self, data_item: DataItem, tokenizer: Any) -> dict[str, Any]:
        row = data_item.non_tensor_batch
        return {
            "prompt_str": data_item.prompt_str,
            "response_str": data_item.response_str,
            "ground_truth": row["reward_model"]["ground_truth"],
            "data_source": row["data_source"],
            "extra_info": row.get("extra_info"),
        }


BaseEnv = Env


class SearchEnv(Env):
    """RLFactory's environment `search`: an exact match, more or less for the form.

    A turn with calls is worth `format_score` · (calls − 2 · closing tags alone) / calls, and −`format_score` / 2 where
    its first call can't be read. An episode is worth, with the form's F = ±f for its answer's tags, and f less for more
    than two calls: 1 + F / 2 where the answer is right, F where it is wrong, F / 2 − f where there is none.
    """

    def get_step_reward(self, responses: Sequence[str], format_score: float = 0.1) -> list[float]:
        """NaN for a turn without calls."""
        rewards: list[float] = []
        for response in responses:
            action, tools = self.tool_manager.parse_response(response_content=response)
            if action == "answer" or not tools:
                rewards.append(math.nan)
            elif tools[0]["name"] == "<empty>":
                rewards.append(-0.5 * format_score)
            else:
                alone = sum(tool["name"] == "<error>" for tool in tools)
                rewards.append((len(tools) - 2 * alone) / len(tools) * format_score)
        return rewards

    def _compute_score_with_rules(self, data: DataProto, tokenizer: Any, if_val: bool = False) -> list[list[float]]:
        form = 0.0 if if_val else float(self.config.get("format_score", 0.1))
        return [[self._score(self._process_data(data_item=item, tokenizer=tokenizer), form)] for item in data]

    def _score(self, processed: Mapping[str, Any], form: float) -> float:
        text = processed["response_str"]
        answer = extract_solution(text)
        total = form if tags_alternate(text, "answer") else -form
        if tags_alternate(text, "tool_call") and text.count("<tool_call>") > 2:
            total -= form
        if answer is None:
            return 0.5 * total - form
        return 1.0 + 0.5 * total if em_check(answer, targets_of(processed["ground_truth"])) else total


TOOL_ENV_REGISTRY = {"base": BaseEnv, "search": SearchEnv}


def extract_solution(text: str) -> str | None:
    """The last <answer>…</answer>, closed blocks of thinking left out."""
    closed, end, rest = text.rpartition("</think>")
    answer = last_answer(re.sub("<think>.*?</think>", "", closed + end, flags=re.DOTALL) + rest)
    return None if answer is None else answer.strip()


def targets_of(ground_truth: Any) -> list[str]:
    """Right answers: of `{"target": …}`, of a list, or the one."""
    found = ground_truth.get("target", ()) if isinstance(ground_truth, Mapping) else ground_truth
    return [str(item) for item in (found if isinstance(found, list | tuple) else [found])]


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, articles and more than single blanks."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def em_check(prediction: str, targets: Sequence[str]) -> bool:
    """Whether an answer is one of the right ones, normalized."""
    return normalize_answer(prediction) in {normalize_answer(target) for target in targets}


def tags_alternate(text: str, tag: str) -> bool:
    """Whether the tag's opening and closing marks take turns and close; False where there is none."""
    marks = [match[0] for match in re.finditer(rf"</?{tag}>", text)]
    return bool(marks) and marks == [f"<{tag}>", f"</{tag}>"] * (len(marks) // 2)


# One Env for all components of a run that name the same classes, so that they see the same state.

_made: weakref.WeakValueDictionary[str, Env] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def shared_env(options: EnvOptions, where: str | None, default: str = "base") -> Env:
    """The Env of these options, made when it is first asked for. Without `env` it is RLFactory's own called `default`.
    Raises ConfigError."""
    config = {"enable_thinking": False, "mcp_mode": "stdio", "tool_name_selected": [], **options.config}
    config["tool_manager"] = options.tool_manager
    key = json.dumps([options.env or default, config], sort_keys=True, default=repr)
    with _lock:
        env = _made.get(key)
        if env is None:
            cls: Any = load_class(options.env, where) if options.env else TOOL_ENV_REGISTRY[default]
            env = _made[key] = _built(cls, ManagerConfig(config), options.env or default, where)
        return env


def _built(cls: Any, config: Any, name: str, where: str | None) -> Env:
    try:
        env: Env = cls(config)
    except ConfigError as error:
        raise ConfigError(error.problems, where=where, hint=error.hint) from None
    except Exception as error:
        problem = f"{name!r} can't be made: {type(error).__name__}: {error}"
        raise ConfigError(problem, where=where, hint=import_hint(error)) from error
    if not hasattr(env, "tool_manager"):
        raise ConfigError(f"{name!r} has no tool_manager", where=where, hint="Call super().__init__(config) in it.")
    return env
