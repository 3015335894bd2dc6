"""How long the library may take to read a turn.

It reads most families in time linear in the turn's length. Some of its steps aren't: a regular expression that looks
for the end of every argument anew, one that goes through a fence's white space in all ways, a decoding of all tokens
before each mark. Model text can drive those into minutes, on an event loop that serves every episode. So the steps that
a turn would take are estimated first, from above and in linear time; a turn beyond the budget isn't given to the
library, and is answered as one malformed call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from toolrl_plugin_renderers.families import Cost, Family

MAX_MARKS = 4096
"""Opening marks of calls in one turn, drafts while thinking included."""
BUDGET = 100_000_000
"""Characters that the library may look at: about a second."""
DSML_TOKENS = 20_000
"""Tokens of a turn of DeepSeek V4 with a call, before whose marks all tokens are decoded: about a second."""

_FENCE = re.compile(r"```(?:json)?(\s*)")
_SPACES = re.compile(r"\s{2,}")


def too_much(family: Family, ids: Sequence[int], text: str, opening_marks: int) -> bool:
    """Whether a turn could keep the library busy for more than about a second."""
    if opening_marks > MAX_MARKS:
        return True
    if family.costs == "dsml" and "｜DSML｜" in text and len(ids) > DSML_TOKENS:
        return True
    end, steps = _STEPS[family.costs]
    return sum(map(steps, text.split(end) if end else [text])) > BUDGET


def _searches(*marks: str, power: int = 1) -> Callable[[str], int]:
    """Each of these marks may search the rest of its block."""
    return lambda block: len(block) * sum(map(block.count, marks)) ** power


def _fence(block: str) -> int:
    """White space at a fence's beginning, times white space within it."""
    fence = _FENCE.search(block)
    if fence is None:
        return 0
    within = sum(len(run.group()) ** 2 for run in _SPACES.finditer(block, fence.start()))
    return (len(fence.group(1)) + 1) * (len(block) + within)


_STEPS: dict[Cost, tuple[str, Callable[[str], int]]] = {
    "none": ("", lambda block: 0),
    "parameters": ("</tool_call>", _searches("<parameter=", "<function=")),
    "keys": ("</tool_call>", _searches("<arg_key>")),
    "invokes": ("</minimax:tool_call>", _searches("<invoke", "<parameter name=")),
    "dsml": ("</｜DSML｜invoke>", _searches("<｜DSML｜parameter", power=2)),
    "fence": ("<｜tool▁call▁end｜>", _fence),
    "harmony": ("", _searches("<|start|>")),
    "channels": ("", _searches("<|tool_call>")),
}
"""What ends a block, and the steps that one may take."""
