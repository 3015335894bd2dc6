"""Stand-in for verl's `verl.tools.sandbox_fusion_tools`, to derive from: programs run in Sandbox Fusion.

A tool YAML that names `SandboxFusionTool` itself gets the tool of the plugin `sandbox-fusion` instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from toolrl_plugin_verl import ray
from toolrl_plugin_verl.tools.base_tool import BaseTool, Created, Executed
from toolrl_plugin_verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse, function_schema
from toolrl_plugin_verl.utils.reward_score.sandbox_fusion.utils import _process_single_case


class ExecutionWorker:
    """An actor whose `execute.remote(fn, …)` calls a function in one of its threads."""

    def execute(self, fn: Callable[..., Any], *fn_args: Any, **fn_kwargs: Any) -> Any:
        """What the function gives."""
        return fn(*fn_args, **fn_kwargs)


class SandboxFusionTool(BaseTool):
    """`code_interpreter`. A subclass may override any stage, and `execute_code`."""

    default_schema = function_schema(
        "code_interpreter",
        "A tool for executing code.",
        code={"type": "string", "description": "The code to execute."},
    )

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        super().__init__(config, tool_schema)
        self._instance_dict: dict[str, dict[str, Any]] = {}
        self.num_workers = config.get("num_workers", 10)
        self.rate_limit = config.get("rate_limit", 10)
        self.default_timeout = config.get("default_timeout", 30)
        self.default_language = config.get("default_language", "python")
        self.enable_global_rate_limit = config.get("enable_global_rate_limit", True)
        self.memory_limit_mb = config.get("memory_limit_mb", 1024)
        self.sandbox_fusion_url = config.get("sandbox_fusion_url", "")
        if not self.sandbox_fusion_url:
            raise ValueError("sandbox_fusion_url is not set")
        # verl's `rate_limit` counts calls at once.
        threads = min(self.num_workers, self.rate_limit) if self.enable_global_rate_limit else self.num_workers
        self.execution_pool: Any = ray.remote(ExecutionWorker).options(max_concurrency=threads).remote()

    async def create(self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any) -> Created:
        instance_id = instance_id or str(uuid.uuid4())
        self._instance_dict[instance_id] = {"response": "", "ground_truth": ground_truth, "reward": []}
        return instance_id, ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Executed:
        timeout = parameters.get("timeout", self.default_timeout)
        language = parameters.get("language", self.default_language)
        code = str(parameters.get("code", ""))
        result = await self.execution_pool.execute.remote(self.execute_code, instance_id, code, timeout, language)
        return result if isinstance(result, ToolResponse) else ToolResponse(text=str(result)), None, None

    def execute_code(self, instance_id: str, code: str, timeout: float = 30, language: str = "python") -> ToolResponse:
        """What the program writes, where it ended."""
        _, facts = _process_single_case(
            0, None, None, self.sandbox_fusion_url, code, timeout, self.memory_limit_mb, language
        )
        ended = facts["run_status"] == "Finished"
        return ToolResponse(text=facts["stdout"] + facts["stderr"] if ended else "no stdout here")

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self._instance_dict.pop(instance_id, None)
