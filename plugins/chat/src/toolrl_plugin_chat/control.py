"""Control strings: texts that a tokenizer reads as one token with a meaning, such as `<|im_end|>`.

A tool's result or a user's text may contain them, by chance or by intent, and must not become a control token: it
would end a turn or open another. `Shield` takes them out of the contents before a template is rendered and leaves a
private mark in their place, so that the template sees an ordinary text; the codec puts them back as plain text.

Where a format's turn marks are ordinary text (`Assistant:`, `[/INST]`), no encoding keeps a text from writing them.
`turn_marks` finds them there, and `broken_up` puts a blank into each: `Assistant :`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolrl.types import Message, ToolSpec

_MARK = "\U000f7000"
"""Of private use. A mark is this character and one that counts; where a text brings the character, it is hidden too.
transformers gives U+F0000 and U+F0001 a meaning of its own."""
_MARKED = re.compile(f"{_MARK}(.)", re.DOTALL)
_FIRST = 0xF7001


def alternatives(texts: Iterable[str]) -> str:
    """A regular expression that matches the longest of `texts` at a place. It is a tree over their letters: the time at
    a place depends on the texts' length and not on their number (a tokenizer may have a thousand)."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for letter in text:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _expression(tree)


def _expression(node: dict[str, Any]) -> str:
    branches = []
    for letter, child in sorted(node.items()):
        if not letter:
            continue
        chain = re.escape(letter)
        while len(child) == 1 and "" not in child:
            letter, child = next(iter(child.items()))
            chain += re.escape(letter)
        branches.append(chain + (_expression(child) if any(child) else ""))
    joined = branches[0] if len(branches) == 1 else "|".join(branches)
    grouped = f"(?:{joined})"
    return f"{grouped}?" if "" in node else grouped


def well_formed(text: str) -> str:
    """`text` with what no encoding knows replaced: halves of surrogate pairs, which JSON can bring in."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with each of its texts changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_texts(key, change): map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(item, change) for item in value]
    return value


def finder(texts: Iterable[str]) -> re.Pattern[str]:
    """Finds what a shield has to hide: any of `texts`, and its own mark."""
    return re.compile(alternatives([*(text for text in set(texts) if text), _MARK]))


_FIRST_WORD = re.compile(r"\W*\w[\w-]*[^\w\s]+")


def turn_marks(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Finds turn marks that are ordinary text, in each of `texts`, which a format writes around contents, the first
    word with the punctuation behind it, or the first line where there is none. None where no text has a mark. A mark of
    letters alone counts where it is a whole line."""
    found: set[str] = set()
    for text in texts:
        line = text.strip().partition("\n")[0].strip()
        word = _FIRST_WORD.match(line)
        found.add(word.group() if word else line)
    marks = sorted(mark for mark in found if len(mark) > 1)
    patterns = [rf"^[ \t]*{re.escape(m)}[ \t]*$" if m.isalnum() else re.escape(m) for m in reversed(marks)]
    return re.compile("|".join(patterns), re.MULTILINE) if patterns else None


def broken_up(text: str, marks: re.Pattern[str] | None) -> str:
    """`text` with a blank within each of `marks`."""
    return marks.sub(lambda match: f"{match.group()[:-1]} {match.group()[-1]}", text) if marks else text


class Shield:
    """Hides control strings in the contents of one rendering."""

    def __init__(self) -> None:
        self._hidden: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._hidden)

    def hide(self, text: str, pattern: re.Pattern[str]) -> str:
        """`text` with a mark in place of each match of `pattern`."""
        return pattern.sub(self._mark, text)

    def _mark(self, match: re.Match[str]) -> str:
        return _MARK + chr(_FIRST + self._hidden.setdefault(match.group(), len(self._hidden)))

    def restore(self, text: str) -> str:
        """`text` with the hidden strings in their places again."""
        if not self._hidden:
            return text
        originals = list(self._hidden)
        return _MARKED.sub(lambda match: originals[ord(match.group(1)) - _FIRST], text)


class OutsideTexts:
    """Hides control strings in texts from outside: of users, of tools, and the names and ids that a model gave. System
    and assistant messages are the author's own and may hold control strings."""

    def __init__(self, special: Iterable[str], structural: Iterable[str], markup: Iterable[str]) -> None:
        """`structural`: added tokens between messages. `markup`: those of calls, results and thinking."""
        known = {*special, *structural}
        # A user may speak of thinking, as many prompts do.
        tags = {text for text in markup if "think" not in text.lower()}
        self.tools = finder({*known, *markup})
        self._specs, self._user, self._own = finder(known), finder({*known, *tags}), finder(())

    def hidden(self, messages: Sequence[Message], shield: Shield) -> list[Message]:
        """The messages with marks in place of control strings."""
        return [self._hidden(message, shield) for message in messages]

    def _hidden(self, message: Message, shield: Shield) -> Message:
        pattern = {"user": self._user, "tool": self.tools}.get(message.role, self._own)
        return replace(
            message,
            content=shield.hide(message.content, pattern),
            name=message.name and shield.hide(message.name, self.tools),
            tool_call_id=message.tool_call_id and shield.hide(message.tool_call_id, self.tools),
        )

    def hidden_specs(self, specs: Sequence[ToolSpec], shield: Shield) -> list[ToolSpec]:
        """The same for names, descriptions and parameters of tools."""
        return [
            replace(
                spec,
                name=shield.hide(spec.name, self._specs),
                description=shield.hide(spec.description, self._specs),
                parameters=map_texts(spec.parameters, lambda text: shield.hide(text, self._specs)),
            )
            for spec in specs
        ]
