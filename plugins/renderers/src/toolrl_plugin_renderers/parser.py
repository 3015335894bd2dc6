"""The parser `renderers`: the library reads a turn's token ids, in the syntax of the model's family.

The library finds calls by control tokens, so a text that merely spells `<tool_call>` opens none. What it reads becomes
items with their place in the text (`items.py`); calls that it would read into each other are kept apart (`framing.py`),
and one that it passes over without a word becomes an error (`marks.py`). A text without ids is encoded first, and then
goes the same way.

The library reads most families in time linear in the turn's length. Some of its steps aren't, and model text can drive
those into minutes, on an event loop that serves every episode. So the steps that a turn would take are estimated first,
from above and in linear time; a turn beyond the budget is answered as one malformed call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from toolrl.parsing import in_order
from toolrl.protocols import BuildContext, ToolParser
from toolrl.types import CallError, Decoded, ParsedTurn, Span, ToolCall, ToolSpec
from toolrl_common.tokenizers import parser_tokenizer
from toolrl_plugin_renderers import framing
from toolrl_plugin_renderers import marks as reading
from toolrl_plugin_renderers.families import Cost, Family
from toolrl_plugin_renderers.items import Items
from toolrl_plugin_renderers.objects import between
from toolrl_plugin_renderers.options import RenderersParserOptions
from toolrl_plugin_renderers.prompts import Prompts, TextEncoder
from toolrl_plugin_renderers.setup import Setup, functions
from toolrl_plugin_renderers.turns import Turns

Finish = Literal["stop", "length", "abort"]
MAX_MARKS = 4096
"""Opening marks of calls in one turn, drafts while thinking included."""
BUDGET = 100_000_000
"""Characters that the library may look at: about a second."""
DSML_TOKENS = 20_000
"""Tokens of a turn of DeepSeek V4 with a call, before whose marks all tokens are decoded: about a second."""

_FENCE = re.compile(r"```(?:json)?(\s*)")
_SPACES = re.compile(r"\s{2,}")


class _Read(NamedTuple):
    """What was read of a turn."""

    attempts: list[tuple[Any, Span]]
    """The library's attempts (`ParsedToolCall`) and where they stand."""
    thought: list[Span]
    reasoning: str | None
    content: str


class RenderersParser(ToolParser):
    """See the module. Stateless; one object serves all episodes of an environment."""

    def __init__(self, options: RenderersParserOptions | None, context: BuildContext) -> None:
        options = options or RenderersParserOptions()
        tokenizer = parser_tokenizer(options.tokenizer, context, "the parser `renderers`")
        self._setup = Setup(options, tokenizer, context.where or "parser")
        turns = Turns(self._setup)
        self._prompts = Prompts(self._setup, turns)
        self._items = Items(self._setup.family, turns.form)
        self._marks = reading.Marks(self._setup.family, self._setup.codec.added)
        self._encoder = TextEncoder(self._setup)

    # The protocol.

    def parse(
        self,
        text: str,
        *,
        tools: Sequence[ToolSpec],
        finish: Finish = "stop",
        stopped_by: str | None = None,
        prefilled_thinking: bool = False,
    ) -> ParsedTurn:
        """Read a turn of which only the text is known: control tokens are wherever it spells them."""
        ids, decoded = self._encoder(text, ended=finish == "stop" and stopped_by is None)
        return self.parse_ids(
            ids, decoded, tools=tools, finish=finish, stopped_by=stopped_by, prompt_in_thinking=prefilled_thinking
        )

    def parse_ids(
        self,
        ids: Sequence[int],
        decoded: Decoded,
        *,
        tools: Sequence[ToolSpec],
        finish: Finish = "stop",
        stopped_by: str | None = None,
        prompt_in_thinking: bool = False,
    ) -> ParsedTurn:
        """Read a turn. Whether its calls name known tools and fit their schemas is the executor's part."""
        text = decoded.text
        found = self._marks.find(ids, decoded)
        if _too_much(self._setup.family, ids, text, sum(mark.kind in ("open", "begin") for mark in found)):
            return self._unreadable(text, "there is too much of it")
        if self._setup.family.bare_objects:
            return self._objects(text, found, tools, finish)
        try:
            read = self._read(ids, decoded, found, tools, prompt_in_thinking)
        except Exception:  # noqa: BLE001 - a parser is total, whatever the library does
            return self._unreadable(text, "") if text else ParsedTurn()
        return self._turn(text, found, read, tools, finish)

    def _read(
        self,
        ids: Sequence[int],
        decoded: Decoded,
        found: Sequence[reading.Mark],
        tools: Sequence[ToolSpec],
        in_thinking: bool,
    ) -> _Read:
        """What the library makes of a turn, read again without what it would read into another call."""
        family, text, known = self._setup.family, decoded.text, functions(tools)
        response, shift = self._prompts.read(ids, known, in_thinking=in_thinking)
        attempts = self._placed(response.tool_calls, decoded, range(len(ids)), shift, found)
        inside = in_thinking
        if not inside and response.reasoning_content is not None:
            # For GLM the library goes by the settings, whatever the prompt was.
            inside = next((mark.kind for mark in found if mark.kind in ("think", "unthink")), "unthink") == "unthink"
        thought = reading.thinking(text, found, [span for _, span in attempts], family, inside=inside)

        def whole(attempt: Any, span: Span) -> bool:
            return self._items.whole(attempt, text, span, found, tools)

        hidden: set[Span] = set()
        for last in (False, False, True):
            more = framing.hidden(attempts, thought, found, text, family, self._marks.boundary, whole)
            if hidden.issuperset(more):
                break
            if last:
                wrong = reading.covered(text, more)
                attempts = [(attempt, span) for attempt, span in attempts if not wrong[span[0]]]
                break
            hidden.update(more)
            shown = framing.shown(decoded, sorted(hidden))
            again, shift = self._prompts.read([ids[place] for place in shown], known, in_thinking=in_thinking)
            attempts = self._placed(again.tool_calls, decoded, shown, shift, found)
        return _Read(attempts, thought, response.reasoning_content, response.content)

    # Putting a turn together.

    def _turn(
        self, text: str, found: Sequence[reading.Mark], read: _Read, tools: Sequence[ToolSpec], finish: Finish
    ) -> ParsedTurn:
        cut = len(text.rstrip()) if finish == "length" else len(text) + 1
        own: list[ToolCall | CallError]
        if self._setup.family.arguments is not None:
            own = self._items.bare(read.attempts, text, found, tools, cut)
        else:
            own = [self._items.item(each, text, span, tools, cut_off=span[1] >= cut) for each, span in read.attempts]
        taken = [*(span for _, span in read.attempts), *(item.span for item in own), *read.thought]
        passed_over = [
            self._passed_over(kind, text, span, cut_off=span[1] >= cut)
            for kind, span in reading.unread(text, found, taken, self._setup.family)
        ]
        if passed_over or any(isinstance(item, CallError) for item in own):
            own = [self._doubted(item, text, found) for item in own]
        items = in_order(own, passed_over, text)
        frame = [(mark.start, mark.end) for mark in found if mark.kind in ("section", "unsection")]
        pieces = self._content([*frame, *read.thought, *(item.span for item in items)], text, read.content)
        if unmarked := self._items.unmarked(text, pieces, items, tools):
            items = in_order(items, unmarked, text)
            pieces = self._content([*frame, *read.thought, *(item.span for item in items)], text, read.content)
        return ParsedTurn(
            items=items,
            content="".join(text[start:end] for start, end in pieces),
            reasoning=read.reasoning,
            status="calls" if items else "final",
            content_spans=pieces,
        )

    def _objects(
        self, text: str, found: Sequence[reading.Mark], tools: Sequence[ToolSpec], finish: Finish
    ) -> ParsedTurn:
        """A turn whose calls have no marks, which the library reads if the turn is one call and nothing else."""
        tags = [(mark.start, mark.end) for mark in found if mark.kind == "open"]
        items = in_order(self._items.objects(text, tags, tools, cut_off=finish == "length"), (), text)
        spans = [item.span for item in items]
        pieces = reading.content(text, [*spans, *between(text, spans)])
        return ParsedTurn(
            items=items,
            content="".join(text[start:end] for start, end in pieces),
            status="calls" if items else "final",
            content_spans=pieces,
        )

    def _doubted(self, item: ToolCall | CallError, text: str, found: Sequence[reading.Mark]) -> ToolCall | CallError:
        """A call of a turn in which something is wrong. An opening mark in one of its values is text as long as no
        other call may lack it."""
        inner = reading.inside(found, item.span, after=True)
        if isinstance(item, CallError) or all(mark.kind != self._marks.boundary for mark in inner):
            return item
        why = "an argument holds a mark, and another call of this turn lacks one"
        return self._items.error("malformed", text, item.span, name=item.name, why=why)

    def _passed_over(self, kind: str, text: str, span: Span, *, cut_off: bool) -> CallError:
        raw = text[slice(*span)].strip()
        if cut_off and kind == "malformed":
            kind = "unclosed"
        elif kind == "malformed" and raw.startswith("{"):
            return self._items.no_json(raw, text, span)
        return self._items.error(kind, text, span)

    def _content(self, taken: list[Span], text: str, said: str) -> tuple[Span, ...]:
        bodies = self._marks.bodies(text)
        pieces = reading.content(text, taken, bodies)
        at = text.find(said) if bodies == [] and said else -1
        return pieces if at < 0 else reading.content(text, taken, [(at, at + len(said))])

    def _placed(
        self,
        attempts: Sequence[Any],
        decoded: Decoded,
        shown: Sequence[int],
        shift: int,
        found: Sequence[reading.Mark],
    ) -> list[tuple[Any, Span]]:
        """The library's attempts with their characters, in order and without overlap; one for each place, as a block
        with several calls is read by its text. `shown` are the places of the tokens that the library saw."""
        offsets, last = decoded.offsets, len(shown)
        places = [*shown, len(decoded.offsets) - 1]

        def span(attempt: Any) -> Span:
            start, end = (min(max(index - shift, 0), last) for index in attempt.token_span)
            return offsets[places[start]], offsets[places[end - 1] + 1] if end > start else offsets[places[start]]

        first = {span(attempt): attempt for attempt in reversed(attempts)}
        placed, position = [], 0
        for (start, end), attempt in sorted(first.items(), key=itemgetter(0)):
            start, end = self._marks.snapped(found, (start, end))
            start = max(start, position)
            position = max(end, start)
            placed.append((attempt, (start, position)))
        return placed

    def _unreadable(self, text: str, why: str) -> ParsedTurn:
        error: ToolCall | CallError = self._items.error("malformed", text, (0, len(text)), why=why)
        return ParsedTurn((error,), status="calls")


def _too_much(family: Family, ids: Sequence[int], text: str, opening_marks: int) -> bool:
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
