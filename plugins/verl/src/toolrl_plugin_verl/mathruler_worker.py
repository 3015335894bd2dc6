"""What runs in the processes that grade answers by mathruler (`utils/reward_score/geo3k.py`)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 4 * 2**30
"""Address space at most: an answer such as 9^9^9 shall not take the machine's memory."""
_CODE = re.compile(r"['\"\\@]|__|\.\s*[^\W\d]")
"""Quotes, backslashes, attributes: sympy evaluates what it parses, and no answer needs these."""


def build() -> Callable[[dict[str, Any]], dict[str, bool]]:
    """Answers a request with its verdict."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows; a lower hard limit; macOS
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    from mathruler.grader import grade_answer  # type: ignore[import-untyped]
    from sympy.parsing import sympy_parser  # type: ignore[import-untyped]

    parse = sympy_parser.parse_expr

    def parse_harmless(text: str, **options: Any) -> Any:
        if _CODE.search(text):
            raise ValueError("code")
        return parse(text, **options)

    sympy_parser.parse_expr = parse_harmless  # mathruler looks it up there at each call

    def answer(request: dict[str, Any]) -> dict[str, bool]:
        try:
            return {"right": bool(grade_answer(request["given"], request["ground_truth"]))}
        except Exception:  # noqa: BLE001 - a text that the library can't take is no answer
            return {"right": False}

    grade_answer("\\sqrt{12}", "2\\sqrt{3}")  # loads what sympy imports late, before the first deadline
    return answer
