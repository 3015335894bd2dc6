"""The parser `tir`: code fences and tags that run inside the model's turn.

    ```python
    print(2**10)
    ```

    <calculator>3 * (4 - 1)</calculator>

Other tools of the environment are called by their own markers, or by tags of their names.

Generation stops where a call may be complete, the results follow in the same turn, and generation goes on. In many
tokenizers three backticks are one token that opens and closes, so what ends generation depends on the text so far, and
a stop that completed nothing has the status `continue`.

In content the next mark decides. A fence that opens a call, `<python>` and tools' markers are read to their ends; any
other fence and inline code in three backticks is content in which nothing counts. While a construct is open, `awaited`
lists what would end it: generation has to stop there and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from toolrl.types import CallRecord, ToolSpec
from toolrl_common.parsing import Block, ScannedParser, TurnScanner, reads_a_call
from toolrl_common.parsing.jsonvalue import encodable
from toolrl_plugin_tir.fences import (
    Fence,
    FenceEnd,
    Inline,
    Undecided,
    closing_runs,
    find_end,
    read_opening,
    stopped_at,
)
from toolrl_plugin_tir.markers import CALCULATOR, MarkedTool, end_pattern, marked_tools, patterns, stops
from toolrl_plugin_tir.options import TirParserOptions
from toolrl_plugin_tir.python_blocks import clean, find_opener, find_tag, holds_close, unwrapped
from toolrl_plugin_tir.syntax import (
    ARGUMENTS,
    PYTHON_CLOSE,
    PYTHON_FORM,
    PYTHON_OPEN,
    THINK_CLOSE,
)
from toolrl_plugin_tir.wording import inline_results


class TirScanner(TurnScanner):
    """Reads one turn."""

    def __init__(self, text: str, options: Any, tools: Sequence[ToolSpec] = (), **how: Any) -> None:
        super().__init__(text, options, tools, **how)
        marked = [CALCULATOR, *marked_tools(tools)]
        self._stops = stops(marked)
        self._starts = {
            text.lower(): (tool, number) for tool in marked for number, text in enumerate(tool.markers.start)
        }
        self._closers = {text.lower(): tool for tool in marked for text in tool.closers}
        self.MARKS, self.OPENERS = patterns(tuple(tool.markers for tool in marked))
        self._closes: dict[tuple[str, ...], re.Match[str] | None] = {}
        """By end markers: the first of them behind the block that asked last."""
        self._awaited = self._stops

    def awaited(self) -> tuple[str, ...]:
        """What may end the construct that the text so far leaves open; in content, all that may end a call."""
        self.ended = False
        self._advance()
        return (THINK_CLOSE,) if self._thinking else self._awaited

    # What the machine asks for.

    def read_block(self, start: int, tag: str) -> Block | None:
        name = tag.lower() if tag.lower() in self._starts else tag.strip(" \t").lower()
        if name in self._starts:
            return self._marked(start, start + len(tag), *self._starts[name])
        if name in self._closers:
            tool = self._closers[name]
            return self._stray(name, tool.markers.start[0], _form_of(tool), start, start + len(tag))
        if tag[0] != "<":
            return self._run(start, tag)
        if name == PYTHON_CLOSE:
            return self._stray(name, PYTHON_OPEN, PYTHON_FORM, start, start + len(tag))
        return self._python(start, start + len(tag))

    def status(self) -> Literal["calls", "final", "continue"]:
        """A stop that is text of an open construct, or that completed no item, ended nothing."""
        stopped = self.stopped_by or ""
        ours = stopped in (*self._stops, THINK_CLOSE) or set(stopped) in ({"`"}, {"~"})
        if ours and (self._open_from is not None or not self.items):
            return "continue"
        return "calls" if self.items else "final"

    # Fences.

    def _run(self, start: int, tag: str) -> Block | None:
        fence = read_opening(self.text, start, tag, self.ended)
        if isinstance(fence, Undecided):
            return self._wait(*((tag[-1] * 3,) if fence.opens else self._stops))
        if isinstance(fence, Inline):
            return self._inline(start, fence)
        end = find_end(self.text, fence, self.ended)
        if end is None and not self.ended:
            # A line that would close it may be incomplete; what comes behind it is then content.
            closing = find_end(self.text, fence, True) is not None
            return self._wait(*(self._stops if closing else closing_runs(self.text, fence)))
        if fence.kind == "other":
            return Block(None, len(self.text) if end is None else end.end)
        if end is None:
            last = stopped_at(self.text, fence, self.stopped_by)
            if last is None:
                self.open_from(start)
            end = FenceEnd(last or len(self.text), len(self.text), last is not None)
        return self._code_fence(fence, end)

    def _code_fence(self, fence: Fence, end: FenceEnd) -> Block:
        if not end.closed:
            run = fence.char * fence.length
            message = f"The code was not closed by {run} on a line of its own, so it was not run. {PYTHON_FORM}"
            return self.error("unclosed", message, fence.start, end.end)
        if fence.kind == "misplaced":
            return self._misplaced(fence.start, end.end)
        return self._code(clean(self.text[fence.body : end.body], fence.indent), fence.start, end.end)

    def _inline(self, start: int, found: Inline) -> Block:
        if not found.call:
            return Block(None, found.end)
        return self._code("", start, found.end) if found.blank else self._misplaced(start, found.end)

    def _misplaced(self, start: int, end: int) -> Block:
        message = "Code stands on the line that opens its fence. It begins on the line after, or it is not run."
        return self.error("malformed", f"{message} {PYTHON_FORM}", start, end)

    def _code(self, code: str, start: int, end: int) -> Block:
        if not code:
            return self.error("empty", f"There is no code to run. {PYTHON_FORM}", start, end)
        if encodable(code):
            return self.call("python", {ARGUMENTS["python"]: code}, start, end)
        message = f"It holds half of a surrogate pair, which is no character. {PYTHON_FORM}"
        return self.error("bad_arguments", message, start, end, name="python")

    # Tags.

    def _python(self, start: int, body: int) -> Block | None:
        text = self.text
        tag = find_tag(text, body, self.ended)
        if isinstance(tag, str):
            return self._wait(PYTHON_CLOSE)
        if tag is not None and tag.group()[1] == "/":
            return self._code(clean(unwrapped(text[body : tag.start()])), start, tag.end())
        if tag is None:
            if self.stopped_by == PYTHON_CLOSE and not holds_close(text[body:]):
                return self._code(clean(unwrapped(text[body:])), start, len(text))
            self.open_from(start)
        opener = find_opener(text, body, len(text) if tag is None else tag.end(), self.ended)
        if opener == "wait":
            return self._wait(PYTHON_CLOSE)
        return self._unclosed(PYTHON_CLOSE, PYTHON_FORM, start, len(text) if opener is None else opener)

    def _marked(self, start: int, body: int, tool: MarkedTool, number: int) -> Block | None:
        text, ends, form = self.text, tool.ends(number), _form_of(tool)
        close = self._close_of(ends, body)
        limit = close.start() if close else len(text)
        opener = self.OPENERS.search(text, body)
        opener = opener if opener is not None and opener.start() < limit else None
        if not self.ended and close is None and (opener is None or opener.end() == len(text)):
            return self._wait(*ends)
        if opener is not None or (close is None and self.stopped_by not in ends):
            if opener is None:
                self.open_from(start)
            return self._unclosed(ends[0], form, start, opener.start() if opener else limit)
        inner, end = text[body:limit].strip(), close.end() if close else limit
        if not inner and tool.inside:
            return self.error("empty", f"There is nothing between the markers. {form}", start, end)
        arguments = tool.read(inner) if encodable(inner) else None
        if arguments is None:
            return self.error("bad_arguments", f"The arguments can't be read. {form}", start, end, name=tool.name)
        return self.call(tool.name, arguments, start, end)

    def _close_of(self, ends: tuple[str, ...], body: int) -> re.Match[str] | None:
        """The first end marker from `body` on. Remembered, so that many calls without one cost one look."""
        known = self._closes.get(ends)
        if ends not in self._closes or (known is not None and known.start() < body):
            self._closes[ends] = end_pattern(ends).search(self.text, body)
        return self._closes[ends]

    def _stray(self, close: str, opening: str, form: str, start: int, end: int) -> Block:
        message = f"{close} closes nothing: there is no {opening} before it. {form}"
        return self.error("stray_close", message, start, end)

    def _unclosed(self, close: str, form: str, start: int, end: int) -> Block:
        return self.error("unclosed", f"The call was not closed with {close}, so it was not run. {form}", start, end)

    def _wait(self, *stops: str) -> None:
        """The block is incomplete, and `stops` may end it."""
        self._awaited = stops


def _form_of(tool: MarkedTool) -> str:
    return f"Write a call as {tool.form}."


class TirParser(ScannedParser):
    """Fences and tags. Stateless: one object serves all episodes."""

    SCANNER = TirScanner
    OPTIONS = TirParserOptions

    def stops(self, turn_text: str) -> Sequence[str]:
        """What may end a call where there are `python` and `calculator` alone."""
        return self.stops_for(turn_text, ())

    def stops_for(self, turn_text: str, tools: Sequence[ToolSpec]) -> Sequence[str]:
        """What may end the construct that is open, or in content any call. `</think>` too, while it isn't known whether
        the prompt opened a thinking block: what stands in one opens nothing."""
        close = turn_text.find(THINK_CLOSE)
        opened = "<think>" in turn_text[: close if close >= 0 else None]
        stops = TirScanner(turn_text, self.options, tools, thinking=close >= 0 and not opened).awaited()
        return stops if opened or close >= 0 else (*stops, THINK_CLOSE)

    def render_results(self, records: Sequence[CallRecord]) -> str:
        """An output fence for each item, calls and errors alike; the text stands inside the turn."""
        return inline_results(records)


def check() -> str:
    """For `toolrl doctor`: read a call."""
    return reads_a_call(TirParser(), "```python\nprint(1)\n```")
