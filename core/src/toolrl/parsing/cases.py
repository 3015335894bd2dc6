"""Cases for parsers: a text, what it came with, and what a parser should make of it. One JSON object a line.

| field | meaning |
|---|---|
| `id` | a name; without one it is the number of the line |
| `parser` | the parser it is for, or none for any; `answer` for cases of the end flag, which run under `hermes` |
| `text` | the turn's text, or `text_parts`: a list of [string, how often] |
| `tools` | a list of `{name, parameters}`, or of OpenAI function objects |
| `stopped_by`, `prefilled_thinking` | as `ToolParser.parse` takes them |
| `expected` | the items in order: `{name, arguments}` or `{error, name?}` |
| `content`, `answer` | compared where given |
| `check` | replaces `expected`: `errors_only`, `one_call` (names alone), `cap` (256 and `too_many_calls`) |
| `max_seconds` | compared where given |
| `debatable`, `alternatives`, `note` | for readers: a difference in a debatable case is no fault |
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolrl.errors import SAVE_AS_UTF8, DataError
from toolrl.parsing.flags import EndFlags
from toolrl.parsing.items import MAX_ITEMS
from toolrl.protocols import ToolParser
from toolrl.types import ParsedTurn, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a file of cases."""

    id: str
    text: str
    parser: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    stopped_by: str | None = None
    prefilled_thinking: bool = False
    wanted: Mapping[str, Any] = field(default_factory=dict)
    """The line itself: what was expected, and notes."""


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What a parser made of a text."""

    parsed: ParsedTurn
    seconds: float

    def items(self) -> list[dict[str, Any]]:
        """The items as cases write them."""
        return [
            {"name": item.name, "arguments": dict(item.arguments)}
            if isinstance(item, ToolCall)
            else {"error": item.kind, **({"name": item.name} if item.name is not None else {})}
            for item in self.parsed.items
        ]

    def facts(self) -> dict[str, Any]:
        """Items, content, answer and seconds."""
        parsed = self.parsed
        return {"items": self.items(), "content": parsed.content, "answer": parsed.answer, "seconds": self.seconds}


def read_cases(path: str | Path) -> Iterator[Case]:
    """The cases of a file. Raises DataError for one that can't be read, and for a line that is none."""
    try:
        with Path(path).open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _case(line, f"{path}:{number}", number)
    except (OSError, UnicodeDecodeError) as error:
        hint = SAVE_AS_UTF8 if isinstance(error, UnicodeDecodeError) else None
        raise DataError(f"the cases can't be read: {error}", where=str(path), hint=hint) from error


def run_case(parser: ToolParser, flags: EndFlags, case: Case) -> CaseOutcome:
    """Parse a case's text and look for the end flags."""
    started = time.perf_counter()
    parsed = parser.parse(
        case.text, tools=case.tools, stopped_by=case.stopped_by, prefilled_thinking=case.prefilled_thinking
    )
    parsed = flags.read(parsed, case.text, stopped_by=case.stopped_by)
    return CaseOutcome(parsed, time.perf_counter() - started)


def differences(case: Case, outcome: CaseOutcome) -> list[str]:
    """What isn't as the case wants it, a line each; empty where all is."""
    wanted, items = case.wanted, outcome.items()
    found = _item_differences(wanted, items)
    if "content" in wanted and outcome.parsed.content != wanted["content"]:
        found.append(f"content: expected {wanted['content']!r:.200}, got {outcome.parsed.content!r:.200}")
    if "answer" in wanted and outcome.parsed.answer != wanted["answer"]:
        found.append(f"answer: expected {wanted['answer']!r:.200}, got {outcome.parsed.answer!r:.200}")
    if "max_seconds" in wanted and outcome.seconds > wanted["max_seconds"]:
        found.append(f"took {outcome.seconds:.3f} s, at most {wanted['max_seconds']} s were wanted")
    return found


def _item_differences(wanted: Mapping[str, Any], items: list[dict[str, Any]]) -> list[str]:
    check, expected = wanted.get("check"), wanted.get("expected")
    if check == "errors_only":
        right = all("error" in item for item in items)
    elif check == "cap":
        right = len(items) == MAX_ITEMS + 1 and items[-1].get("error") == "too_many_calls"
    elif check == "one_call" and expected:
        right = len(items) == 1 and items[0].get("name") == expected[0]["name"]
        right = right and set(items[0].get("arguments", ())) == set(expected[0]["arguments"])
    elif expected is None:
        return []
    else:
        right = items == expected
    return [] if right else [f"items: expected {check or expected!r:.300}, got {items!r:.300}"]


def _case(line: str, where: str, number: int) -> Case:
    try:
        row = json.loads(line)
        return Case(
            id=str(row.get("id", number)),
            text=_text(row),
            parser=row.get("parser"),
            tools=tuple(ToolSpec.from_function(tool) for tool in row.get("tools") or ()),
            stopped_by=row.get("stopped_by"),
            prefilled_thinking=bool(row.get("prefilled_thinking", False)),
            wanted=row,
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise DataError(f"no case can be read here: {type(error).__name__}: {error}", where=where) from error


def _text(row: Mapping[str, Any]) -> str:
    if "text_parts" in row:
        return "".join([piece * count for piece, count in row["text_parts"]])
    if not isinstance(row["text"], str):
        raise TypeError(f"text is {type(row['text']).__name__}, expected a string")
    return row["text"]
