"""Where the plain-text value of a parameter ends. The format has no escapes, so the structure has to tell.

A value ends at the first `</parameter>` behind which a parameter, the function's end or the call's end follows; any
other `</parameter>` is text. A whole call quoted in the value counts as text up to its own `</function>`. Where the
closing tag was forgotten, a parameter tag or `</function>` at the start of a line ends the value, or `</tool_call>`
there with nothing or another call behind it.

If a new call begins at the start of a line, and no `</parameter>` of this value comes soon after it, the value was cut
off and the new call is no quotation: it has to survive.
"""

from __future__ import annotations

import re
from typing import NamedTuple

QUOTED = 4096
"""Characters within which a quoted call and the value around it have to end."""
MAX_LOOKS = 20_000
"""Tags of one text that are looked at for the sake of quotations. A text that needs more is no quotation of anything:
its values end at the first possible end."""
_FAR = 64

_TOKEN = re.compile(
    r"(?P<close></parameter>)"
    r"|\n[ \t]*+(?:(?P<parameter><parameter=)|(?P<function_end></function>)|(?P<call_end></tool_call>)"
    r"|(?P<call><tool_call>\s*+(?P<called><function=[^<>\n]*>)?)|(?P<function><function=[^<>\n]*>))"
    r"|(?P<inner></function>)"
)
_OUTER = re.compile("</?tool_call>")
_SPACE = re.compile(r"\s*")
_AFTER_CALL = ("<tool_call>",)
_AFTER_CLOSE = ("<parameter=", "</function>", "</tool_call>")


class Value(NamedTuple):
    """Where a value ends."""

    end: int
    resume: int
    """Where reading goes on."""
    closed: bool
    """False where the call can't run: `end` is where it was cut off, or `resume` is after its `</tool_call>`."""


class ValueEnds:
    """Finds ends in one text. Remembers from where on there is none, so that many open values cost one look, and how
    much it looked beyond possible ends, so that many doubtful values cost little."""

    def __init__(self) -> None:
        self._none_from: int | None = None
        self._looks = 0
        self._after: dict[int, int] = {}  # where long whitespace that begins here ends

    def find(self, text: str, start: int) -> Value:
        """The end of the value that begins at `start`."""
        if self._none_from is not None and start >= self._none_from:
            return self._cut_off(text, start)
        depth = quoted = 0  # functions, and outer tags of quoted calls, that are open
        limit, new_call = len(text), len(text)
        first: Value | None = None  # the first possible end, quotations not respected
        for token in _TOKEN.finditer(text, start):
            kind = token.lastgroup
            self._looks += first is not None
            if token.start() > limit or (first and self._looks > MAX_LOOKS):
                break
            if kind == "call" and new_call == len(text) and depth == 0:
                new_call = token.start("call")
                limit = min(limit, new_call + QUOTED)
            if kind == "function" or token["called"]:
                depth += 1
                quoted += kind == "call"
                continue
            if kind == "call_end" and quoted:
                quoted -= 1
                continue
            end = self._end(text, token)
            if end is not None and first is None:
                first, limit = end, min(limit, end.resume + QUOTED)
            if end is not None and depth == 0:
                by_close = kind == "close" or new_call == len(text)
                return end if by_close else Value(new_call, new_call, False)
            depth -= kind in ("function_end", "inner") and depth > 0
        else:
            if first is None:
                self._none_from = start
                return self._cut_off(text, start)
        # What looked like a quoted call never ended; one of both is there.
        return first if first is not None and first.end <= new_call else Value(new_call, new_call, False)

    def _end(self, text: str, token: re.Match[str]) -> Value | None:
        """The end that a token is if no quotation surrounds it."""
        kind = token.lastgroup
        if kind in ("parameter", "function_end"):
            return Value(token.start(), token.start(kind), True)
        if kind not in ("close", "call_end"):
            return None
        after, follows = token.end(), _AFTER_CLOSE if kind == "close" else _AFTER_CALL
        if not text.startswith("<", after):
            after = self._space(text, after)
        if text.startswith(follows, after) or after == len(text):
            return Value(token.start(), token.end(), kind == "close")
        return None

    def _space(self, text: str, at: int) -> int:
        """The index after whitespace. A long stretch is read once, however often it is looked at."""
        known = self._after.get(at, at)
        end = _SPACE.match(text, known).end()  # type: ignore[union-attr]  # it matches nothing, too
        if end - at > _FAR:
            self._after[at] = end
        return end

    @staticmethod
    def _cut_off(text: str, start: int) -> Value:
        """No end at all: the call was cut off, and the next tag of a call begins something new."""
        tag = _OUTER.search(text, start)
        if tag is None:
            return Value(len(text), len(text), False)
        return Value(tag.start(), tag.end() if tag.group() == "</tool_call>" else tag.start(), False)
