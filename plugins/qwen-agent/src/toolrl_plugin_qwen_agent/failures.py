"""What a tool raised, in words for the model.

Tools of Qwen-Agent have no error of their own for what the model should read: they raise whatever is at hand, and the
agent hands the model all of it, traceback included. Here errors of values, checks, files and services become a
ToolError; all others (a KeyError, an AttributeError …) are mistakes in the tool's code and count as a crash of it.
"""

from __future__ import annotations

from typing import Any

import jsonschema

from toolrl.errors import ArgumentsError, ToolError, ToolrlError

_SERVICE = {"ToolServiceError", "ModelServiceError", "DocParserError", "ParserError"}
_BUSY = {"408", "425", "429", "500", "502", "503", "504"}
_LOST = {"ConnectionError", "ConnectTimeout", "ReadTimeout", "Timeout", "ChunkedEncodingError"}
"""Of the library `requests`, which need not be installed."""
LONGEST = 4000
"""Characters of an error that the model is given."""


def error_for_model(error: Exception) -> Exception:
    """What to raise in its place: a ToolError, or itself where it counts as a crash."""
    if isinstance(error, ToolrlError):
        return error
    if isinstance(error, jsonschema.ValidationError):
        place = "".join(f"[{step!r}]" for step in error.absolute_path)
        return ArgumentsError(_cut(f"Bad arguments{f' at {place}' if place else ''}: {error.message}"))
    if isinstance(error, AssertionError):
        return ToolError(_cut(f"The tool refused the call: {error or 'a check failed.'}"))
    names = {base.__name__ for base in type(error).__mro__}
    # These say something of the call, and not of the tool's code.
    meant = isinstance(error, ValueError | OSError | RuntimeError)
    if names & _SERVICE or (meant and not isinstance(error, NotImplementedError | RecursionError)):
        words = str(error).strip() or "no further words."
        return ToolError(_cut(f"{type(error).__name__}: {words}"), transient=_may_pass(error))
    return error


def _may_pass(error: Any) -> bool:
    """True where the same call may succeed later."""
    inner = getattr(error, "exception", None)
    if isinstance(inner, Exception) and inner is not error:
        return _may_pass(inner)
    code = getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", None)
    lost = type(error).__module__.startswith("requests.") and any(b.__name__ in _LOST for b in type(error).__mro__)
    return str(code) in _BUSY or lost or isinstance(error, ConnectionError | TimeoutError)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
