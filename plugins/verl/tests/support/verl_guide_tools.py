"""Tools as verl's guides have users write them. Only their imports name `toolrl_plugin_verl` for `verl`."""

import json
import logging
import os
import threading
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from toolrl_plugin_verl import ray
from toolrl_plugin_verl.tools.base_tool import BaseTool
from toolrl_plugin_verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from toolrl_plugin_verl.tools.utils.search_r1_like_utils import perform_single_search_batch
from toolrl_plugin_verl.utils.rollout_trace import rollout_trace_op

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "WARN"))

LOG: list[tuple[str, str]] = []
"""(stage, instance) in the order of calls; for the tests."""


class YourTool(BaseTool):
    """The multi-turn guide's: a text as answer, an id from create."""

    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._instance_dict = {}

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs) -> str:
        if instance_id is None:
            instance_id = str(uuid4())
        self._instance_dict[instance_id] = {"response": "", "ground_truth": ground_truth, "calls": 0}
        LOG.append(("create", instance_id))
        return instance_id

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> tuple[str, float, dict]:
        state = self._instance_dict[instance_id]
        state["calls"] += 1
        state["response"] = str(parameters.get("answer", ""))
        LOG.append(("execute", instance_id))
        reward = await self.calc_reward(instance_id)
        return f"call {state['calls']}: {state['response']}", reward - 0.5, {"calls": state["calls"], "note": "a text"}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        LOG.append(("calc_reward", instance_id))
        state = self._instance_dict[instance_id]
        return 1.0 if state["response"] == state["ground_truth"] else 0.0

    async def release(self, instance_id: str, **kwargs) -> None:
        LOG.append(("release", instance_id))
        del self._instance_dict[instance_id]


@ray.remote(concurrency_groups={"acquire": 1, "release": 10})
class TokenBucketWorker:
    """The search guide's limiter."""

    def __init__(self, rate_limit: int):
        self.current_count = 0
        self._semaphore = threading.Semaphore(rate_limit)

    @ray.method(concurrency_group="acquire")
    def acquire(self):
        self._semaphore.acquire()
        self.current_count += 1

    @ray.method(concurrency_group="release")
    def release(self):
        self._semaphore.release()
        self.current_count -= 1

    def get_current_count(self):
        return self.current_count


class SearchExecutionWorker:
    """Runs searches, a limited number at once."""

    def __init__(self, rate_limit: int = 10):
        self.limiter = TokenBucketWorker.options(name="guide-rate-limiter", get_if_exists=True).remote(rate_limit)

    def execute(self, fn, *args):
        with ExitStack() as stack:
            stack.callback(self.limiter.release.remote)
            ray.get(self.limiter.acquire.remote())
            return fn(*args)


class SearchTool(BaseTool):
    """The search guide's: queries to a retrieval server, through a pool of workers."""

    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._instance_dict = {}
        self.execution_pool = (
            ray.remote(SearchExecutionWorker)
            .options(max_concurrency=config.get("num_workers", 120))
            .remote(rate_limit=config.get("rate_limit", 120))
        )
        self.retrieval_service_url = config.get("retrieval_service_url")
        assert self.retrieval_service_url, "Configuration must include 'retrieval_service_url'"
        self.topk = config.get("topk", 3)

    async def create(self, instance_id: str | None = None, **kwargs) -> tuple[str, ToolResponse]:
        if instance_id is None:
            instance_id = str(uuid4())
        self._instance_dict[instance_id] = {"response": "", "reward": []}
        return instance_id, ToolResponse()

    def execute_search(self, instance_id: str, query_list: list):
        return perform_single_search_batch(self.retrieval_service_url, query_list, self.topk, None, 30)

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> tuple[ToolResponse, float, dict]:
        query_list = parameters.get("query_list")
        if not query_list or not isinstance(query_list, list):
            return ToolResponse(text=json.dumps({"result": "Error: 'query_list' is missing."})), 0.0, {}
        text, metadata = await self.execution_pool.execute.remote(self.execute_search, instance_id, query_list)
        self._instance_dict[instance_id]["reward"].append(text.strip())
        metrics = {key: metadata.get(key) for key in ("query_count", "status", "total_results", "api_request_error")}
        return ToolResponse(text=text), 0.0, metrics

    async def calc_reward(self, instance_id: str, **kwargs) -> str:
        return self._instance_dict[instance_id]["reward"]

    async def release(self, instance_id: str, **kwargs) -> None:
        if instance_id in self._instance_dict:
            del self._instance_dict[instance_id]


class LatestTool(BaseTool):
    """Written for verl 0.9.1: everything in `create_kwargs`, state in `agent_data`."""

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        function = {"name": "latest", "description": "Counts.", "parameters": {"type": "object", "properties": {}}}
        return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})

    async def create(self, create_kwargs: dict | None = None) -> tuple[str, ToolResponse]:
        return f"own-{uuid4()}", ToolResponse(text=f"Begin with {create_kwargs['start']}.")

    async def execute(self, instance_id: str, parameters: dict, agent_data=None) -> tuple[ToolResponse, float, dict]:
        assert instance_id.startswith("own-")
        count = agent_data.extra_fields.get("count", 0) + 1
        agent_data.extra_fields["count"] = count
        return (
            ToolResponse(text=f"{count} of {agent_data.tools_kwargs['latest']['create_kwargs']['start']}"),
            None,
            None,
        )
