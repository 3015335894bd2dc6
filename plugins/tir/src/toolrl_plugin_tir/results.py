"""Results as text inside the turn."""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolrl.types import CallRecord

_RUN = re.compile(r"^[ \t]*+(`{3,}+)", re.MULTILINE)


def fenced(text: str) -> str:
    """An output fence around a text."""
    fence = fence_for(text)
    return f"{fence}output\n{text}\n{fence}\n"


def fence_for(text: str) -> str:
    """Backticks that no line of the text begins with as many of; three where that is enough."""
    return "`" * (max((len(run) for run in _RUN.findall(text)), default=2) + 1)


def inline_results(records: Sequence[CallRecord]) -> str:
    """A fence for each record, in order."""
    return "".join(f"\n{fenced(_text(record))}" for record in records)


def _text(record: CallRecord) -> str:
    """What the model reads. Images and videos can't stand in a text, so a line names them."""
    media = record.result.media
    if not media:
        return record.result.text
    kinds = ", ".join(item.kind for item in media)
    return f"{record.result.text}\n(left out, since only text can be shown here: {kinds})"
