"""Stand-in for verl's `verl.tools.search_tool`: passages from a retrieval server.

Settings are verl's: `retrieval_service_url`, `num_workers`, `rate_limit` (concurrent calls, despite its name),
`timeout`, `topk`. The calls of one process share them; `enable_global_rate_limit` needs no Ray here.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from toolrl_plugin_verl.ray import DaemonPool
from toolrl_plugin_verl.tools.base_tool import BaseTool, Executed
from toolrl_plugin_verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse, function_schema
from toolrl_plugin_verl.tools.utils.search_r1_like_utils import perform_single_search_batch


class SearchTool(BaseTool):
    """Searches for each of the model's queries."""

    default_schema = function_schema(
        "search",
        "Searches for relevant information based on queries.",
        query_list={"type": "array", "items": {"type": "string"}, "description": "List of search queries"},
    )

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        super().__init__(config, tool_schema)
        self.retrieval_service_url = config.get("retrieval_service_url")
        if not isinstance(self.retrieval_service_url, str) or not self.retrieval_service_url:
            raise ValueError("config.retrieval_service_url: the address of the retrieval server is missing")
        self.timeout = float(config.get("timeout") or config.get("default_timeout") or 30)
        self.topk = int(config.get("topk") or 3)
        at_once = min(int(config.get("num_workers") or 120), int(config.get("rate_limit") or 120))
        self._pool = DaemonPool(at_once, "verl search")

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Executed:
        queries = parameters.get("query_list")
        if not isinstance(queries, list) or not queries:
            problem = "Error: 'query_list' is missing, empty, or not a list in parameters."
            return ToolResponse(text=json.dumps({"result": problem})), 0.0, {}
        url, texts = str(self.retrieval_service_url), [str(query) for query in queries]
        search = self._pool.submit(perform_single_search_batch, url, texts, self.topk, None, self.timeout)
        text, facts = await asyncio.wrap_future(search)
        shown = {key: facts[key] for key in ("query_count", "total_results")}
        return ToolResponse(text=text), 0.0, {**shown, "failed": float(facts["status"] != "success")}
