"""What runs in the worker processes of math-verify, which is imported here and nowhere else.

Work that takes too long, or doesn't end, ends when the parent kills the process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 4 * 2**30
"""Address space at most: an answer such as 9^{9^9} shall not take the machine's memory."""


def build() -> Callable[[dict[str, Any]], dict[str, str]]:
    """Answers a request with its verdict."""
    _limit_memory()
    judge = _judge()
    judge(["1/2"], "\\boxed{\\frac{1}{2}}")  # loads the rest of sympy, before a question's time begins
    return lambda request: {"verdict": judge(**request)}


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows; a lower hard limit; macOS
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _judge() -> Callable[..., str]:
    from math_verify import parse, verify  # type: ignore[import-untyped]

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    @functools.lru_cache(maxsize=1024)
    def read_gold(gold: str) -> tuple[Any, ...]:
        written = gold if "\\boxed" in gold or gold.count("$") == 2 else f"\\boxed{{{gold}}}"
        return tuple(parse(written, parsing_timeout=None))

    def judge(golds: list[str], text: str) -> str:
        """`right`, `wrong`, or `bad_gold` where no gold can be read."""
        try:
            read = [value for gold in golds for value in read_gold(gold)]
            if not read:
                return "bad_gold"
            said = parse(text, parsing_timeout=None)
            return "right" if verify(read, said, timeout_seconds=None) else "wrong"
        except Exception:  # noqa: BLE001 - a text that the library can't take is no answer
            return "wrong"

    return judge
