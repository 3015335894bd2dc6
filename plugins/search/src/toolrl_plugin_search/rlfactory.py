"""The final reward of RLFactory's search environment as it is, its faults included.

It is here so that a published curve can be compared with; see the README for what differs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolrl_plugin_search.answers import last_answer, normalised

MANY_CALLS = 2
"""More calls than these cost a factor."""


def final_score(text: str, golds: Sequence[str], factor: float) -> float:
    """The value of all that the model wrote: 1 for the right answer plus half of the form, the form alone for a wrong
    one, and minus a factor plus half of the form for none. The form is that of all tags, in thinking, too; an answer in
    thinking is none."""
    form = factor if _alternate(text, "answer") else -factor
    if _alternate(text, "tool_call") and text.count("</tool_call>") > MANY_CALLS:
        form -= factor
    said = last_answer(_without_thinking(text))
    if said is None:
        return -factor + 0.5 * form
    right = normalised(said) in {normalised(gold) for gold in golds}
    return 1.0 + 0.5 * form if right else form


def _alternate(text: str, tag: str) -> bool:
    """Whether opening and closing tags alternate, the first one opens and the last one closes. False for none."""
    tags = re.findall(f"</?{tag}>", text)
    return bool(tags) and tags == [f"<{tag}>", f"</{tag}>"] * (len(tags) // 2)


def _without_thinking(text: str) -> str:
    """The text without closed thinking blocks. Linear in the text."""
    *closed, rest = text.split("</think>")
    return "".join(part.partition("<think>")[0] for part in closed) + rest
