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
    problem: DataError | None = None
    """What is wrong with a line that is no case, with file and line."""


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
    """The cases of a file; a line that is none has a `problem`. Raises DataError for a file that can't be read."""
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
    row: Any = None
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise TypeError(f"expected a JSON object, got {type(row).__name__}")
        return Case(
            id=str(row.get("id", number)),
            text=_text(row),
            parser=_string(row, "parser"),
            tools=tuple(ToolSpec.from_function(tool) for tool in row.get("tools") or ()),
            stopped_by=_string(row, "stopped_by"),
            prefilled_thinking=bool(row.get("prefilled_thinking", False)),
            wanted=row,
        )
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError, MemoryError) as error:
        problem = DataError(f"no case can be read here: {error or type(error).__name__}", where=where)
    except KeyError as error:
        hint = "A case needs `text` or `text_parts`, and each of its tools a `name`."
        problem = DataError(f"a case lacks {error}", where=where, hint=hint)
    given = row if isinstance(row, dict) else {}
    parser = given.get("parser")
    parser = parser if isinstance(parser, str) else None
    return Case(str(number), "", parser, wanted=given, problem=problem)


def _text(row: Mapping[str, Any]) -> str:
    text = row.get("text")
    if text is None and "text_parts" in row:
        return "".join([piece * count for piece, count in row["text_parts"]])
    if not isinstance(text, str):
        _ = row["text"]
        raise TypeError(f"text is {type(text).__name__}, expected a string")
    return text


def _string(row: Mapping[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{key} is {type(value).__name__}, expected a string or null")
    return value
