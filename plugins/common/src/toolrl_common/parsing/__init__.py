"""What parsers of tool calls are made of: a scanner, and strict JSON with bounds.

A parser plugin needs none of it to follow the `ToolParser` protocol; it is here so that each keeps the same promises:
pure, never raising, linear in the text's length, nothing lost.
"""

from toolrl_common.parsing.jsonvalue import MAX_DEPTH, JsonFault, read_json
from toolrl_common.parsing.scanner import Block, ScannedParser, TurnScanner, reads_a_call

__all__ = [
    "MAX_DEPTH",
    "Block",
    "JsonFault",
    "ScannedParser",
    "TurnScanner",
    "read_json",
    "reads_a_call",
]
