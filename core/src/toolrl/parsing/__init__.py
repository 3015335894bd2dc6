"""What a turn is read into, whichever parser reads it: end flags, the order of items, answers as messages.

What parsers are made of (a scanner, strict JSON with bounds) is `toolrl_common.parsing`.
"""

from toolrl.parsing.flags import EndFlags
from toolrl.parsing.items import MAX_ITEMS, in_order, tool_messages

__all__ = ["MAX_ITEMS", "EndFlags", "in_order", "tool_messages"]
