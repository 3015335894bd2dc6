"""End flags: what in a turn's content is the answer that ends the episode.

| name | matches | of several |
|---|---|---|
| `answer` | `<answer>…</answer>` | the last pair, which begins at its last opening tag |
| `boxed` | `\\boxed{…}` with balanced braces | the one that begins last |
| anything else | a regular expression in RE2's syntax; its first group is the answer | the last, of at most 64 |

Only content is searched: not thinking, not calls and their arguments, not what a tool wrote. Answers are stripped. With
several flags the first in the config's order that matches wins. A pair that is opened and not closed, or closed and not
opened, is an error item, which the model reads like a malformed call.

Everything is linear in the content's length. Patterns come from users, and Python's own engine can take exponential
time on them, so they are run by RE2, which can't; lookaround and back-references don't exist there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from toolrl.errors import ConfigError
from toolrl.parsing.items import MAX_ITEMS, in_order
from toolrl.types import CallError, ParsedTurn, Span

MAX_MATCHES = 64
"""Of one pattern in one turn."""

_ANSWER = re.compile("</?answer>")
_ANSWER_OPEN, _ANSWER_CLOSE = "<answer>", "</answer>"
_BRACES = re.compile(r"\\boxed\s*\{|\\.|(?P<flat>(?:\{[^{}\\]*+\})++)|\{+|\}+", re.DOTALL)


class Content:
    """A turn's content, with the way back to the text that it was cut from."""

    def __init__(self, text: str, spans: Sequence[Span]) -> None:
        self.text = text
        self.spans = spans

    @cached_property
    def joined(self) -> str:
        """All of it in one piece."""
        return "".join([self.text[first:last] for first, last in self.spans])

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((last - first for first, last in self.spans), initial=0))

    def between(self, start: int, end: int) -> str:
        """The content among the text's characters [start, end)."""
        return "".join([self.text[max(a, start) : min(b, end)] for a, b in self.spans if a < end and b > start])

    def rest(self, index: int) -> Span:
        """Of a character of the joined content: where it stood in the text, and where that piece of content ends."""
        piece = min(bisect_right(self._starts, index), len(self.spans)) - 1
        first, last = self.spans[piece]
        return first + index - self._starts[piece], last


Found = tuple[str | None, list[CallError]]
Flag = Callable[[Content, str | None], Found]


class EndFlags:
    """The end flags of an environment. Immutable, shared by all its episodes.

    `stop=True` also ends generation at `</answer>`. That suits base models, which write on after their answer; a chat
    model ends its turn itself, and has to learn to, so the default leaves that to it.
    """

    def __init__(self, names: Sequence[str] = (), *, stop: bool = False, where: str | None = None) -> None:
        """Raises ConfigError with every pattern that can't be used. `where` is their place in the config."""
        self.names = tuple(names)
        self._stops = (_ANSWER_CLOSE,) if stop and "answer" in self.names else ()
        problems: list[str] = []
        self._flags = [flag for flag in (_flag(name, problems) for name in self.names) if flag]
        if problems:
            hint = "Use `answer`, `boxed`, or a regular expression in RE2's syntax with one group for the answer."
            raise ConfigError(problems, where=where, hint=hint)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.names, bool(self._stops))

    def stops(self) -> tuple[str, ...]:
        """Strings that end generation; see `stop`."""
        return self._stops

    def find(self, text: str) -> str | None:
        """The answer in a text that is content as a whole; None where there is none. Empty answers are answers."""
        return self._read(Content(text, ((0, len(text)),)), None)[0] if self._flags else None

    def read(self, parsed: ParsedTurn, text: str, *, stopped_by: str | None = None) -> ParsedTurn:
        """A parsed turn of `text` with its answer, and with the flags' errors among its items, in order.

        An answer that the parser itself found stays. A stop at `</answer>` that ended no answer, because it stood in
        thinking or in an argument, makes the status `continue`.
        """
        if not self._flags:
            return parsed
        answer, errors = self._read(Content(text, parsed.content_spans or _whole(parsed, text)), stopped_by)
        answer = parsed.answer if parsed.answer is not None else answer
        status = parsed.status
        if answer is None and stopped_by is not None and stopped_by in self._stops:
            status = "continue"
        elif errors and status == "final":
            status = "calls"
        if not errors and answer is parsed.answer and status == parsed.status:
            return parsed
        items = in_order(parsed.items, errors, text) if errors else parsed.items
        return replace(parsed, items=items, answer=answer, status=status)

    def _read(self, content: Content, stopped_by: str | None) -> Found:
        answer: str | None = None
        errors: list[CallError] = []
        for flag in self._flags:
            found, wrong = flag(content, stopped_by)
            answer = found if answer is None else answer
            errors += wrong
        return answer, errors


def _rebuild(names: Sequence[str], stop: bool) -> EndFlags:
    return EndFlags(names, stop=stop)


def _whole(parsed: ParsedTurn, text: str) -> Sequence[Span]:
    """For a parser that gives no spans: its content where it is one piece of the text, else nothing is known."""
    at = text.find(parsed.content) if parsed.content else -1
    return ((at, at + len(parsed.content)),) if at >= 0 else ()


def _flag(name: str, problems: list[str]) -> Flag | None:
    if name == "answer":
        return _answer
    if name == "boxed":
        return _boxed
    try:
        return _Pattern(name)
    except ValueError as error:
        problems.append(f"end flag {name!r}: {error}")
        return None


def _answer(content: Content, stopped_by: str | None) -> Found:
    """`<answer>…</answer>`; the closing tag may be the stop string that was cut off."""
    errors: list[CallError] = []
    if "answer>" not in content.text:
        return None, errors
    opened: Span | None = None
    opened_in: Span = (0, 0)
    pair: Span | None = None
    for first, last in content.spans:
        for tag in _ANSWER.finditer(content.text, first, last):
            if tag.group() == _ANSWER_OPEN:
                opened, opened_in = tag.span(), (tag.start(), last)
            elif opened is not None:
                pair, opened = (opened[1], tag.start()), None
            elif len(errors) <= MAX_ITEMS:
                message = f"{_ANSWER_CLOSE} closes nothing: there is no {_ANSWER_OPEN} before it."
                errors.append(_error("stray_close", f"{message} {_ANSWER_FORM}", content.text, tag.span()))
    if opened is not None and stopped_by == _ANSWER_CLOSE:
        pair = (opened[1], len(content.text))
    elif opened is not None:
        message = f"The answer was not closed with {_ANSWER_CLOSE}, so it does not count. {_ANSWER_FORM}"
        errors.append(_error("unclosed", message, content.text, opened_in))
    return content.between(*pair).strip() if pair else None, errors


_ANSWER_FORM = f"Write it as {_ANSWER_OPEN}ANSWER{_ANSWER_CLOSE}."


def _boxed(content: Content, stopped_by: str | None) -> Found:
    """`\\boxed{…}`: one pass with a stack of the boxes that are open and the depth at which each closes."""
    joined = content.joined
    if "\\boxed" not in joined:
        return None, []
    best: Span | None = None
    boxes: list[tuple[int, int, int]] = []  # where it begins, where its content begins, depth outside
    depth = 0
    for token in _BRACES.finditer(joined, joined.index("\\boxed")):
        head = token.group()
        if token["flat"]:
            continue
        if head[0] == "{":
            depth += len(head)
        elif head[0] == "}":
            # A brace that closes nothing is no reason to lose what follows.
            lowest = max(depth - len(head), 0)
            while boxes and boxes[-1][2] >= lowest:
                _, begin, outside = boxes.pop()
                if best is None or begin > best[0]:
                    best = (begin, token.start() + depth - outside - 1)
            depth = lowest
        elif head.endswith("{") and len(head) > 2:
            boxes.append((token.start(), token.end(), depth))
            depth += 1
    answer = joined[best[0] : best[1]].strip() if best else None
    if not boxes:
        return answer, []
    message = "\\boxed{ was not closed, so it does not count. Write the answer as \\boxed{ANSWER}."
    return answer, [_error("unclosed", message, content.text, content.rest(boxes[0][0]))]


class _Pattern:
    """A user's pattern, run by RE2. Raises ValueError where it can't be used."""

    def __init__(self, source: str) -> None:
        import re2  # type: ignore[import-untyped]

        options = re2.Options()
        options.log_errors = False
        try:
            self._regex = re2.compile(source, options)
        except re2.error as error:
            reason = error.args[0] if error.args else error
            reason = reason.decode() if isinstance(reason, bytes) else reason
            raise ValueError(f"it is no regular expression that runs in linear time: {reason}") from None
        if self._regex.groups < 1:
            raise ValueError("it is no known name, and as a regular expression it has no group for the answer")

    def __call__(self, content: Content, stopped_by: str | None) -> Found:
        data = content.joined.encode(errors="replace")
        answer, at = None, 0
        for _ in range(MAX_MATCHES):
            match = self._regex.search(data, at) if at <= len(data) else None
            if match is None:
                break
            if match.group(1) is not None:
                answer = match.group(1).decode(errors="replace").strip()
            at = max(match.end(), match.start() + 1)
        return answer, []


def _error(kind: str, message: str, text: str, span: Span) -> CallError:
    return CallError(kind, message, span=span, raw=text[span[0] : span[1]])
