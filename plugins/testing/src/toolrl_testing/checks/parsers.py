"""Contracts of parsers: total, deterministic, spans in order, linear time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.parsing.cases import differences, read_cases, run_case
from toolrl.parsing.flags import EndFlags
from toolrl.protocols import ReadsTokens, ToolParser
from toolrl.types import CallError, CallRecord, Message, ParsedTurn, ToolCall, ToolResult, ToolSpec
from toolrl_testing.checks import fail, require

SPECS = (
    ToolSpec("calculator", "Calculates.", {"type": "object", "properties": {"expression": {"type": "string"}}}),
    ToolSpec("search", "Searches.", {"type": "object", "properties": {"query": {"type": "string"}}}),
)
_PIECES = (
    '<tool_call>', '</tool_call>', '{"name": "calculator", "arguments": {"expression": "1+1"}}', "<think>", "</think>",
    "```python\n", "```", "{", "}", "[", "]", '"', "\\", ":", ",", "\n", " ", "<", ">", "\u2028", "\x00", "🙂",
    "\ud800", "null", "1e999", "calculator",
    "<function=calculator>", "<parameter=expression>", "</parameter>", "</function>",
    "<answer>", "</answer>", "\\boxed{", "<|im_end|>",
)  # fmt: skip
_FINISHES: tuple[Literal["stop", "length", "abort"], ...] = ("stop", "length", "abort")


def check_turn(
    parser: ToolParser,
    text: str,
    finish: Literal["stop", "length", "abort"] = "stop",
    stopped_by: str | None = None,
) -> ParsedTurn:
    """One text: nothing raises, spans lie in the text and in order, the same text gives the same turn."""
    where = f"for the text {text!r:.300} (finish {finish!r}, stopped by {stopped_by!r})"
    given: dict[str, Any] = {"tools": SPECS, "finish": finish, "stopped_by": stopped_by}
    for prefilled in (True, False):
        try:
            turn = parser.parse(text, **given, prefilled_thinking=prefilled)
            again = parser.parse(text, **given, prefilled_thinking=prefilled)
        except Exception as error:  # noqa: BLE001 - a parser is total
            fail(f"parse() raised {type(error).__name__}: {error} {where}")
        if not isinstance(turn, ParsedTurn):
            fail(f"parse() gave {type(turn).__name__}, expected a ParsedTurn {where}")
        require(turn == again, f"parse() gave two different turns {where}")
        _check_items(turn, text, where, stopped=stopped_by is not None)
        _check_content(turn, text, where, reads_tokens=isinstance(parser, ReadsTokens))
    _check_stops(parser, text, where)
    _check_rendering(parser, turn, where)
    return turn


def check_total(parser: ToolParser, texts: Sequence[str] = (), *, examples: int = 200) -> None:
    """`check_turn` for random texts, and for mutilated pieces of `texts`, real turns of this format; also where
    generation stopped on one of the parser's stop strings."""
    for text in texts:
        for finish in _FINISHES:
            check_turn(parser, text, finish)
    pieces = st.sampled_from([*_PIECES, *texts])
    cuts = st.tuples(pieces, st.integers(0, 400), st.integers(0, 400)).map(lambda c: c[0][min(c[1:]) : max(c[1:])])
    random_text = st.lists(st.one_of(pieces, cuts, st.text(max_size=8)), max_size=12).map("".join)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(random_text, st.sampled_from(_FINISHES), st.sampled_from([None, *parser.stops("")]))
    def run(text: str, finish: Literal["stop", "length", "abort"], stopped_by: str | None) -> None:
        check_turn(parser, text, finish, stopped_by)

    run()


def check_linear(parser: ToolParser, texts: Sequence[str] = ()) -> None:
    """Eight times the text takes about eight times the processor time, not 64 times, for repetitions of every piece."""
    for piece in (*_PIECES, *texts, '<tool_call>{"name": ', '{"a":', '[{"', "<tool_call>" * 2 + "{"):

        def cost(repeats: int, piece: str = piece) -> float:
            return _seconds(lambda: parser.parse(piece * repeats, tools=SPECS, finish="stop"))

        short = max(1, 2000 // max(len(piece), 1))
        while cost(short) < 0.004 and short * len(piece) < 200_000:
            short *= 2
        # Measured anew each time: a pause of the machine during one of them is no growth.
        if not any(cost(8 * short) < 32 * max(cost(short), 0.001) for _ in range(5)):
            fail(f"parse() takes more than 32 times as long for 8 times the text, {piece!r:.60} repeated {short} times")


def check_calls_found(parser: ToolParser, texts: Sequence[str]) -> None:
    """Each of `texts` holds a call: it is found, and its tool's name and arguments are sound."""
    for text in texts:
        turn = parser.parse(text, tools=SPECS, finish="stop")
        calls = [item for item in turn.items if isinstance(item, ToolCall)]
        require(calls, f"no call was found in {text!r:.300}: {turn}")


def check_cases(parser: ToolParser, path: str | Path, name: str) -> None:
    """Each case of a file that names the parser `name` is read as it expects; how long that takes doesn't count."""
    found, run = {}, 0
    for case in read_cases(path):
        if case.problem is not None:
            raise case.problem
        if case.parser == name:
            run += 1
            lines = differences(case, run_case(parser, EndFlags(["answer"]), case))
            if lines := [line for line in lines if not line.startswith("took ")]:
                found[case.id] = lines
    require(run, f"no case of {path} is for {name!r}")
    require(not found, f"cases are read in another way: {found}")


def _check_items(turn: ParsedTurn, text: str, where: str, *, stopped: bool) -> None:
    require(isinstance(turn.content, str), f"content is {turn.content!r} {where}")
    require(turn.status in ("calls", "final", "continue"), f"status is {turn.status!r} {where}")
    expected = "calls" if turn.items else "final"
    right = turn.status == expected or (stopped and turn.status == "continue")
    require(right, f"status is {turn.status!r} with {len(turn.items)} items {where}")
    end = 0
    for item in turn.items:
        if not isinstance(item, ToolCall | CallError):
            fail(f"an item is {item!r}, expected a ToolCall or a CallError {where}")
        start, stop = item.span
        require(0 <= start <= stop <= len(text), f"span {item.span} lies outside of the text {where}")
        require(start >= end, f"span {item.span} begins before the last one's end {end} {where}")
        require(item.raw == text[start:stop], f"raw is {item.raw!r}, the span holds {text[start:stop]!r} {where}")
        end = stop
        if isinstance(item, ToolCall):
            require(isinstance(item.name, str) and item.name, f"a call has the name {item.name!r} {where}")
            require(
                hasattr(item.arguments, "items") and all(isinstance(key, str) for key in item.arguments),
                f"arguments are {item.arguments!r}, expected a mapping with text keys {where}",
            )
        else:
            require(item.message.strip(), f"the error {item.kind!r} has no message for the model {where}")


def _check_content(turn: ParsedTurn, text: str, where: str, *, reads_tokens: bool) -> None:
    """Where a parser gives the pieces of its content: content and items share no character, and what is neither is
    thinking, its tags and white space around it. A parser that reads tokens may leave out marks of its own, too."""
    if not turn.content_spans:
        return
    require(turn.content == "".join(text[slice(*span)] for span in turn.content_spans), f"content differs {where}")
    rest, at = "", 0
    for start, end in sorted([*turn.content_spans, *(item.span for item in turn.items)]):
        require(at <= start < end, f"two pieces share the character {start} {where}")
        rest, at = rest + text[at:start], end
    rest += text[at:]
    same = reads_tokens or _without_tags(rest) == _without_tags(turn.reasoning or "")
    require(same, f"{rest!r} is neither content nor an item, and reasoning is {turn.reasoning!r} {where}")


def _without_tags(text: str) -> str:
    return text.replace("<think>", "").replace("</think>", "").strip()


def _check_stops(parser: ToolParser, text: str, where: str) -> None:
    try:
        stops = parser.stops(text)
    except Exception as error:  # noqa: BLE001 - a parser is total
        fail(f"stops() raised {type(error).__name__}: {error} {where}")
    require(not isinstance(stops, str), f"stops() gave a text, expected a list of texts {where}")
    for stop in stops:
        require(isinstance(stop, str) and stop, f"stops() gave {stop!r}, expected a text that isn't empty {where}")


def _check_rendering(parser: ToolParser, turn: ParsedTurn, where: str) -> None:
    records = [CallRecord(item, ToolResult(f"result {n}")) for n, item in enumerate(turn.items)]
    try:
        rendered = parser.render_results(records)
    except Exception as error:  # noqa: BLE001 - a parser is total
        fail(f"render_results() raised {type(error).__name__}: {error} {where}")
    messages = [] if isinstance(rendered, str) else list(rendered)
    require(all(isinstance(message, Message) for message in messages), f"render_results() gave {rendered!r} {where}")
    shown = rendered if isinstance(rendered, str) else "\n".join(message.content for message in messages)
    for record in records:
        require(record.result.text in shown, f"render_results() leaves out {record.result.text!r} {where}")


def _seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread: what else runs on the machine doesn't count."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin
