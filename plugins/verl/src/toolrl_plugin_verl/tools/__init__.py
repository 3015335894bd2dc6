"""What verl's tools import: base class, function tools, schemas, scorers.

    from toolrl_plugin_verl.tools import BaseTool, OpenAIFunctionToolSchema, ToolResponse, geo3k, rollout_trace_op

Each also stands where verl has it, with `toolrl_plugin_verl` for `verl`.
"""

from toolrl_plugin_verl.tools.base_tool import BaseTool
from toolrl_plugin_verl.tools.function_tool import function_tool
from toolrl_plugin_verl.tools.schemas import (
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
    ToolResponse,
)
from toolrl_plugin_verl.utils.reward_score import geo3k, gsm8k
from toolrl_plugin_verl.utils.rollout_trace import rollout_trace_op

__all__ = [
    "BaseTool",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolSchema",
    "ToolResponse",
    "function_tool",
    "geo3k",
    "gsm8k",
    "rollout_trace_op",
]
