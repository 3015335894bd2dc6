"""The parsers keep the contracts of a plugin."""

from __future__ import annotations

from typing import ClassVar

from toolrl_testing import PluginContract

HERMES = 'Let me see.\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
CODER = (
    "<tool_call>\n<function=calculator>\n<parameter=expression>\n1+1\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=search>\n<parameter=query>\ntoday's news\n</parameter>\n</function>\n</tool_call>"
)


class TestContract(PluginContract):
    plugin = "qwen"
    parser_texts: ClassVar = {"hermes": [HERMES, f"<think>\nhm\n</think>\n{HERMES}\n{HERMES}"], "qwen3_coder": [CODER]}
