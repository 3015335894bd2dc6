"""Folders laid out as a clone of verl is, with tools of verl's own kind."""

from __future__ import annotations

from pathlib import Path

STATES = {
    "whole": "",
    "package missing": "import package_of_verl_that_is_missing\n",
    "package too new": "from json import name_of_an_older_version\n",
    "broken": "from json import dumps\ndumps.attribute_of_an_older_version\n",
}
"""The state of a clone's packages: what `verl/__init__.py` and other packages run."""

_BASE = """
from .schemas import OpenAIFunctionToolSchema, ToolResponse


class BaseTool:
    def __init__(self, config, tool_schema):
        self.config, self.tool_schema = config, tool_schema
        self.name = tool_schema.function.name

    async def create(self, instance_id=None, **kwargs):
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text=""), 0.0, {}

    async def calc_reward(self, instance_id, **kwargs):
        return 0.0

    async def release(self, instance_id, **kwargs):
        pass
"""
_SCHEMAS = """
from typing import Any, Optional

from pydantic import BaseModel


class OpenAIFunctionSchema(BaseModel):
    name: str
    description: str
    parameters: dict[str, Any]


class OpenAIFunctionToolSchema(BaseModel):
    type: str
    function: OpenAIFunctionSchema


class ToolResponse(BaseModel):
    text: Optional[str] = None
    image: Optional[list[Any]] = None
    video: Optional[list[Any]] = None
"""
_GSM8K = """
from verl.utils.reward_score import gsm8k
from verl.utils.rollout_trace import rollout_trace_op

from .base_tool import BaseTool
from .schemas import OpenAIFunctionToolSchema, ToolResponse


class Gsm8kTool(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._instances = {}

    async def create(self, instance_id=None, ground_truth=None, **kwargs):
        self._instances[instance_id] = {"ground_truth": ground_truth, "response": ""}
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(self, instance_id, parameters, **kwargs):
        self._instances[instance_id]["response"] = "#### " + parameters["answer"]
        return ToolResponse(text=f"of the clone: {await self.calc_reward(instance_id)}"), 0.0, {}

    async def calc_reward(self, instance_id, **kwargs):
        state = self._instances[instance_id]
        return gsm8k.compute_score(state["response"], state["ground_truth"], method="flexible")
"""
_SANDBOX = """
import logging
import threading
from contextlib import ExitStack

import ray

from verl.tools.base_tool import BaseTool
from verl.utils.reward_score.sandbox_fusion.utils import _process_single_case
from verl.utils.rollout_trace import rollout_trace_op

from .schemas import OpenAIFunctionToolSchema, ToolResponse

logger = logging.getLogger(__name__)


@ray.remote(concurrency_groups={"acquire": 1, "release": 10})
class TokenBucketWorker:
    def __init__(self, rate_limit: int):
        self._semaphore = threading.Semaphore(rate_limit)

    @ray.method(concurrency_group="acquire")
    def acquire(self):
        self._semaphore.acquire()

    @ray.method(concurrency_group="release")
    def release(self):
        self._semaphore.release()


class ExecutionWorker:
    def __init__(self, rate_limit=10):
        self.limiter = TokenBucketWorker.options(name="clone-limiter", get_if_exists=True).remote(rate_limit)

    def execute(self, fn, *args, **kwargs):
        with ExitStack() as stack:
            stack.callback(self.limiter.release.remote)
            ray.get(self.limiter.acquire.remote())
            return fn(*args, **kwargs)


class SandboxFusionTool(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.execution_pool = ray.remote(ExecutionWorker).options(max_concurrency=2, num_cpus=0).remote()
        self.sandbox_fusion_url = config["sandbox_fusion_url"]

    @rollout_trace_op
    async def execute(self, instance_id, parameters, **kwargs):
        result = await self.execution_pool.execute.remote(self.execute_code, instance_id, parameters["code"])
        assert isinstance(result, ToolResponse)
        return result, None, None

    def execute_code(self, instance_id, code, timeout=30, language="python"):
        status, facts = _process_single_case(0, None, None, self.sandbox_fusion_url, code, timeout, 1024, language)
        return ToolResponse(text=f"of the clone: {facts['stdout']}")

    async def calc_reward(self, instance_id, **kwargs):
        return 0.5
"""
_CASES = """
import requests


def _process_single_case(index, stdin, expected, url, code, timeout, memory_limit_mb, language):
    asked = {"code": code, "language": language, "run_timeout": timeout, "memory_limit_MB": memory_limit_mb}
    return 1, {"stdout": requests.post(url, json=asked, timeout=30).json()["run_result"]["stdout"]}
"""
_SCORE = """
def compute_score(solution, ground_truth, method="strict", **kwargs):
    return 1.0 if solution.partition("#### ")[2] == ground_truth else 0.0
"""


def write_clone(folder: Path, state: str) -> None:
    """A clone whose packages are in one of `STATES`."""
    fails = STATES[state]
    files = {
        "__init__.py": "from .protocol import DataProto\n",
        "protocol.py": f"{fails}class DataProto: ...\n",
        "tools/__init__.py": "",
        "tools/base_tool.py": _BASE,
        "tools/schemas.py": _SCHEMAS,
        "tools/gsm8k_tool.py": _GSM8K,
        "tools/sandbox_fusion_tools.py": _SANDBOX,
        "utils/__init__.py": "from . import tokenizer\n",
        "utils/tokenizer.py": fails,
        "utils/rollout_trace.py": f"{fails if 'package' in state else ''}def rollout_trace_op(f): return f\n",
        "utils/reward_score/__init__.py": fails,
        "utils/reward_score/gsm8k.py": _SCORE,
        "utils/reward_score/sandbox_fusion/__init__.py": "",
        "utils/reward_score/sandbox_fusion/utils.py": _CASES,
    }
    for name, text in files.items():
        file = folder / "verl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def tool_yaml(module: str, cls: str, name: str, argument: str, **config: str) -> str:
    """A tool YAML of one of the clone's tools."""
    settings = ", ".join(f"{key}: '{value}'" for key, value in {"type": "native", **config}.items())
    parameters = f"{{type: object, properties: {{{argument}: {{type: string}}}}, required: [{argument}]}}"
    function = f"{{name: {name}, description: A tool., parameters: {parameters}}}"
    schema = f"{{type: function, function: {function}}}"
    return f"tools:\n  - class_name: verl.tools.{module}.{cls}\n    config: {{{settings}}}\n    tool_schema: {schema}\n"
