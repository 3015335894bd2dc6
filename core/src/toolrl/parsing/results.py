"""Answers to a turn's items as chat messages."""

from __future__ import annotations

from collections.abc import Sequence

from toolrl.types import CallRecord, Message


def tool_messages(records: Sequence[CallRecord]) -> list[Message]:
    """One message of role `tool` for each item, calls and errors alike, in order."""
    return [
        Message(
            "tool", record.result.text, media=record.result.media, tool_call_id=record.call.id, name=record.call.name
        )
        for record in records
    ]
