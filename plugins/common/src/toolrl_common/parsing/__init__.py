"""What parsers of tool calls are made of: a scanner, strict JSON with bounds, calls without tags.

A parser plugin needs none of it to follow the `ToolParser` protocol; it is here so that each keeps the same promises:
pure, never raising, linear in the text's length, nothing lost.
"""

from toolrl_common.parsing.jsonvalue import MAX_DEPTH, JsonFault, read_json
from toolrl_common.parsing.lenient import take_bare_calls
from toolrl_common.parsing.mend import mend_json
from toolrl_common.parsing.scanner import Block, ScannedParser, TurnScanner, reads_a_call

__all__ = [
    "MAX_DEPTH",
    "Block",
    "JsonFault",
    "ScannedParser",
    "TurnScanner",
    "mend_json",
    "read_json",
    "reads_a_call",
    "take_bare_calls",
]
