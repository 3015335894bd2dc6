"""Stand-ins for `verl.tools`, and what else tools import of verl, by their names."""

from toolrl_plugin_verl.tools.base_tool import BaseTool
from toolrl_plugin_verl.tools.function_tool import function_tool
from toolrl_plugin_verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from toolrl_plugin_verl.utils.reward_score import geo3k, gsm8k
from toolrl_plugin_verl.utils.rollout_trace import rollout_trace_op

__all__ = [
    "BaseTool",
    "OpenAIFunctionToolSchema",
    "ToolResponse",
    "function_tool",
    "geo3k",
    "gsm8k",
    "rollout_trace_op",
]
