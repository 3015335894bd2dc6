"""What runs in the worker processes of math-verify.

math-verify and sympy are imported here and nowhere else. Long work is stopped by an alarm, which only a main thread can
take: this process has one for itself. What the alarm can't stop (one long step in C) ends when the parent kills the
process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
from collections.abc import Callable, Iterator
from typing import Any

MEMORY_BYTES = 4 * 2**30
"""Address space at most: an answer such as 9^{9^9} shall not take the machine's memory."""


class _OutOfTimeError(BaseException):
    """No Exception, so that the library's own handlers let it pass."""


def build() -> Callable[[dict[str, Any]], dict[str, str]]:
    """Answers a request with its verdict."""
    _limit_memory()
    judge = _judge()
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

    def judge(golds: list[str], text: str, timeout: float) -> str:
        """`right`, `wrong`, `timeout`, or `bad_gold` where no gold can be read."""
        try:
            with _alarm(timeout):
                read = [value for gold in golds for value in read_gold(gold)]
                if not read:
                    return "bad_gold"
                said = parse(text, parsing_timeout=None)
                return "right" if verify(read, said, timeout_seconds=None) else "wrong"
        except _OutOfTimeError:
            return "timeout"
        except Exception:  # noqa: BLE001 - a text that the library can't take is no answer
            return "wrong"

    return judge


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise _OutOfTimeError after that long; where there are no alarms, the parent's deadline has to do."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(signum: int, frame: Any) -> None:
        raise _OutOfTimeError

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
