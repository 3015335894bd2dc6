"""What follows a turn, without rendering it each time.

Rendering a template for every answer of a tool is the greatest part of what a turn costs. But most templates only write
a result's text down: what follows a turn is then the same but for the contents, a form with places to fill in. One is
found once for each kind of messages (their roles, names and ids), the second time that they are seen, and only where it
is certain that the template does nothing with the contents but write them:

- The template is rendered with contents that notice whatever is asked of them: a comparison, a search, a filter, their
  length. All that is allowed is to be written, joined by `+`, passed on, and taken as true.
- Templates in which a content could lose that ability before it is looked at have no forms: those with macros, blocks
  whose output is kept, and with filters or calls that read a string without asking it.
- The contents hold what an encoder would change, such as quotes, and have to come out as they went in.
- The form gives what the real rendering gives, for these contents and for some that templates like to look at.

Where any of this fails, each turn is rendered as a whole.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from toolrl.chat.rendering import Dict
from toolrl.types import Message

Render = Callable[..., str]
"""(messages, tools, generation_prompt=) → text."""
AfterTurn = Callable[[Sequence[Message], Render | None], str]
"""The text that follows a turn, rendered by the given function or by the template's own."""
Kind = tuple[tuple[str, str | None, str | None], ...]

_MOST_KINDS = 1024
_FILTERS = {
    "capitalize", "count", "d", "default", "dictsort", "first", "items", "last", "length", "list", "lower", "lstrip",
    "map", "rejectattr", "replace", "reverse", "rstrip", "selectattr", "string", "title", "tojson", "trim", "upper",
}  # fmt: skip
_TRICKY = ('\n {"a": [1, 2]} \n', "<think>\na\n</think>\n\nb", "<tool_response>\nc\n</tool_response>", "0", "é\\n|>")


class _LookedAt(BaseException):
    """A template asked something of a content. No Exception: a test of Jinja's must not take it for an answer."""


class _Opaque(str):
    """A text that may be written and joined, and says of itself nothing more than that it isn't empty."""

    __slots__ = ("seen",)
    seen: list[str]
    """Grows where something is asked, so that nobody can hide it by catching the exception."""

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return True

    def __add__(self, other: str) -> str:
        return _opaque(str.__add__(self, other), self.seen)

    def __radd__(self, other: str) -> str:
        return _opaque(str.__add__(other, self), self.seen)

    def __iter__(self) -> Iterator[str]:
        return _Closed(self.seen)


class _Closed(Iterator[str]):
    """Whether a text can be gone through may be asked, but not what comes."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def __next__(self) -> str:
        _look(self._seen, "iteration")


def _look(seen: list[str], what: str) -> NoReturn:
    seen.append(what)
    raise _LookedAt(what)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: _Opaque, *arguments: Any, **keywords: Any) -> NoReturn:
        _look(self.seen, name)

    return refuse


_ALLOWED = {"__add__", "__class__", "__getattribute__", "__getattr__", "__init__", "__init_subclass__", "__iter__",
            "__new__", "__setattr__", "__delattr__", "__dir__", "__doc__", "__str__", "__bool__", "__radd__",
            "__subclasshook__"}  # fmt: skip
for _name in {*dir(str), "__rmod__"} - _ALLOWED:
    setattr(_Opaque, _name, _refusing(_name))


def _opaque(text: str, seen: list[str]) -> _Opaque:
    made = _Opaque(text)
    made.seen = seen
    return made


def _opaque_in(value: Any) -> _Opaque | None:
    """The first content in a value, or in what that holds."""
    if isinstance(value, _Opaque):
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((found for found in map(_opaque_in, parts) if found is not None), None)


def _asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that reads a string behind its back, and here asks first."""

    @functools.wraps(function)
    def asking(*arguments: Any, **keywords: Any) -> Any:
        found = _opaque_in([*arguments, *keywords.values()])
        if found is not None:
            _look(found.seen, function.__name__)
        return function(*arguments, **keywords)

    return asking


class Forms:
    """The forms of one template. `fill` gives None where there is none for these messages (yet)."""

    def __init__(
        self,
        source: str | None,
        variables: Mapping[str, Any],
        after_turn: AfterTurn,
        is_end: Callable[[str], bool],
        found: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`source` is the template's, None where it has several; `is_end` says whether a text begins with what ends a
        turn; `found` is told what a new form gives."""
        self._found = found
        self._render = _compile(source, variables) if source is not None else None
        self._after_turn = after_turn
        self._is_end = is_end
        self._known: dict[Kind, tuple[str, ...] | None] = {}
        self._met: set[Kind] = set()

    def fill(self, messages: Sequence[Message]) -> str | None:
        """The text that follows a turn, then these messages, then a generation prompt."""
        if self._render is None or not messages:
            return None
        for message in messages:
            if not message.content or message.media or message.tool_calls or message.role not in ("tool", "user"):
                return None
        kind = tuple([(message.role, message.name, message.tool_call_id) for message in messages])
        if kind not in self._known:
            if len(self._known) + len(self._met) >= _MOST_KINDS:
                self._known.clear()
                self._met.clear()
            if kind not in self._met:  # Names may come from a model: what is seen once isn't worth a form.
                self._met.add(kind)
                return None
            self._known[kind] = self._find(kind)
        parts = self._known[kind]
        if parts is None:
            return None
        pieces = [parts[0]]
        for message, part in zip(messages, parts[1:], strict=True):
            pieces += (message.content, part)
        return "".join(pieces)

    def _find(self, kind: Kind) -> tuple[str, ...] | None:
        contents = [f'zq"{number}\\\'<é&\n|{number}"qz' for number in range(len(kind))]
        seen: list[str] = []
        try:
            text = self._after_turn(_messages(kind, [_opaque(content, seen) for content in contents]), self._render)
        except (_LookedAt, Exception):  # noqa: BLE001 - a template may raise what it likes
            return None
        if seen:
            return None
        parts, rest = [], text
        for content in contents:
            before, found, rest = rest.partition(content)
            if not found or content in rest:
                return None
            parts.append(before)
        parts.append(rest)
        if not self._is_end(parts[0]):
            return None
        # What the real rendering gives must be the same; also for contents that templates like to look at.
        trials = [contents, *[[tricky] * len(kind) for tricky in _TRICKY]]
        for trial in trials:
            filled = "".join([piece for pair in zip(parts, [*trial, ""], strict=True) for piece in pair])
            if self._after_turn(_messages(kind, trial), None) != filled:
                return None
        self._found("".join([piece for pair in zip(parts, [*contents, ""], strict=True) for piece in pair]))
        return tuple(parts)


def _messages(kind: Kind, contents: Sequence[str]) -> list[Message]:
    return [
        Message(role, content, name=name, tool_call_id=call_id)  # type: ignore[arg-type]  # it came from a message
        for (role, name, call_id), content in zip(kind, contents, strict=True)
    ]


def _compile(source: str, variables: Mapping[str, Any]) -> Render | None:
    """The template as transformers renders it, but that contents reach it as they are; None for one that could look at
    a content unseen."""
    try:
        from jinja2 import TemplateError, ext, sandbox
    except ImportError:
        return None
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols]
    )

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    environment.filters["tojson"] = to_json
    for table, names in ((environment.filters, ("replace", "title", "tojson")), (environment.tests, ("in",))):
        functions: dict[str, Any] = table
        functions.update({name: _asking(functions[name]) for name in names})
    environment.globals["raise_exception"] = raise_exception
    try:
        if not _only_writes(environment.parse(source)):
            return None
        template = environment.from_string(source)
    except TemplateError:
        return None

    def render(messages: Sequence[Dict], tools: Sequence[Dict] | None = None, *, generation_prompt: bool) -> str:
        given = [{key: value for key, value in message.items() if value is not None} for message in messages]
        text: str = template.render(
            messages=given,
            tools=list(tools) if tools else None,
            documents=None,
            add_generation_prompt=generation_prompt,
            **variables,
        )
        return text

    return render


def _only_writes(tree: Any) -> bool:
    """False where a string could be looked at that no longer notices it."""
    from jinja2 import nodes

    kept = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Block, nodes.Extends,
            nodes.Include, nodes.Import, nodes.FromImport)  # fmt: skip
    if tree.find(kept) is not None:
        return False
    if any(loop.recursive for loop in tree.find_all(nodes.For)):  # It gives what its turns wrote as a plain string.
        return False
    written = {id(node) for output in tree.find_all(nodes.Output) for node in output.nodes}
    for node in tree.find_all(nodes.Concat):
        if id(node) not in written:
            return False
    for node in tree.find_all((nodes.Filter, nodes.Name)):
        if isinstance(node, nodes.Filter) and node.name not in _FILTERS:
            return False
        if isinstance(node, nodes.Name) and node.name == "strftime_now":
            return False
    for node in tree.find_all(nodes.Call):
        arguments = [*node.args, *[keyword.value for keyword in node.kwargs]]
        if isinstance(node.node, nodes.Getattr) and not all(isinstance(it, nodes.Const) for it in arguments):
            return False
    for node in tree.find_all(nodes.Mod):
        if isinstance(node.left, nodes.Const) and isinstance(node.left.value, str):
            return False
    for node in tree.find_all(nodes.Compare):
        for operand in node.ops:
            whole = isinstance(node.expr, nodes.Const) or isinstance(operand.expr, nodes.List | nodes.Tuple)
            if operand.op in ("in", "notin") and not whole:
                return False
    return True
