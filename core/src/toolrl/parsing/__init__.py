"""What parsers of tool calls are made of: a scanner, strict JSON with bounds, end flags.

A parser plugin needs none of it to follow the `ToolParser` protocol; it is here so that each keeps the same promises:
pure, never raising, linear in the text's length, nothing lost.
"""

from toolrl.parsing.flags import EndFlags
from toolrl.parsing.jsonvalue import MAX_DEPTH, JsonFault, read_json
from toolrl.parsing.lenient import take_bare_calls
from toolrl.parsing.mend import mend_json
from toolrl.parsing.results import tool_messages
from toolrl.parsing.scanner import MAX_ITEMS, Block, ScannedParser, TurnScanner, reads_a_call

__all__ = [
    "MAX_DEPTH",
    "MAX_ITEMS",
    "Block",
    "EndFlags",
    "JsonFault",
    "ScannedParser",
    "TurnScanner",
    "mend_json",
    "read_json",
    "reads_a_call",
    "take_bare_calls",
    "tool_messages",
]
