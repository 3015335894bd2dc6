"""Values that cross between a trusted process and one that isn't: copies of plain types, as JSON.

No class, no function, and no object with a say in its own comparison gets across. Subclasses become the type that they
derive from, arrays become lists.

    encode({(1, 2): {3.5}})      {"d": [[{"t": [1, 2]}, {"s": [3.5]}]]}

A program in a sandbox has no toolrl to import from: `program_text` puts this file's text before the program's.
"""

# Without `from __future__ import annotations`, which may only stand at the start of a program.
from pathlib import Path
from typing import Any

_WORD = 1 << 63


def encode(value: Any) -> Any:
    """The value in JSON's types. Raises TypeError if it isn't made of plain types."""
    if value is None or isinstance(value, bool):
        return value
    for kind, as_json in _ENCODERS:
        if isinstance(value, kind):
            return as_json(value)
    if hasattr(value, "tolist"):
        return encode(value.tolist())
    raise TypeError(f"a {type(value).__name__} is not a plain value")


def _int(value: int) -> Any:
    value = int(value)
    return value if -_WORD <= value < _WORD else {"i": hex(value)}


def _many(tag: str) -> Any:
    return lambda value: {tag: [encode(item) for item in value]}


def _unordered(tag: str) -> Any:
    # Sorted, as the order of a set differs from process to process.
    return lambda value: {tag: sorted((encode(item) for item in value), key=repr)}


_ENCODERS: tuple[tuple[Any, Any], ...] = (
    (int, _int),
    (float, float),
    (str, lambda value: str.__str__(value)),
    (list, lambda value: [encode(item) for item in value]),
    (tuple, _many("t")),
    (frozenset, _unordered("fs")),
    (set, _unordered("s")),
    (dict, lambda value: {"d": [[encode(key), encode(item)] for key, item in value.items()]}),
    ((bytes, bytearray), lambda value: {"b": bytes(value).hex()}),
    (complex, lambda value: {"c": [value.real, value.imag]}),
)

_DECODERS: dict[str, Any] = {
    "i": lambda given: int(given, 16),
    "t": lambda given: tuple(decode(item) for item in given),
    "s": lambda given: {decode(item) for item in given},
    "fs": lambda given: frozenset(decode(item) for item in given),
    "d": lambda given: {decode(key): decode(item) for key, item in given},
    "b": bytes.fromhex,
    "c": lambda given: complex(*given),
}


def decode(given: Any) -> Any:
    """The value again, of plain types only. Raises ValueError or TypeError for what `encode` doesn't give."""
    if isinstance(given, list):
        return [decode(item) for item in given]
    if not isinstance(given, dict):
        return given
    tag, content = next(iter(given.items()), ("", None))
    if len(given) != 1 or tag not in _DECODERS:
        raise ValueError("no value")
    return _DECODERS[tag](content)


def program_text(path: str) -> str:
    """The source of a program that uses `encode` and `decode`, for a sandbox: this file's text and then its own."""
    return "\n\n".join(Path(file).read_text(encoding="utf-8") for file in (__file__, path))
