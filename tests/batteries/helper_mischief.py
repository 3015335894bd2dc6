"""What a helper process may do to the pipe on which it replies; `test_helper_processes.py` runs it in each of them."""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SHORT = 0.05
KINDS = (
    "doubled", "stale", "forged", "spare", "truncated", "interleaved", "nested", "late", "fork", "late fork",
    "slow child", "missing", "ends",
)  # fmt: skip
used: list[bytes] = []
"""Nonces of former requests."""


def caller(name: str) -> dict[str, Any]:
    """The locals of the function of that name that this one was called by."""
    frame = sys._getframe()
    while frame.f_code.co_name != name:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_locals


def mischief(how: str, nonce: bytes, frame: Callable[[bytes], bytes], write: Callable[[bytes], Any]) -> None:
    """`frame` makes the reply to the present call with a nonce, `write` writes to the pipe of the replies."""
    own = frame(nonce)
    if how == "doubled":
        write(own)
    elif how == "stale":
        write(frame(used[0] if used else nonce))
    elif how == "forged":
        write(frame(secrets.token_hex(len(nonce))[: len(nonce)].encode()))
    elif how == "spare":
        write(b"\n")
    elif how == "truncated":
        write(own[: len(own) // 2])
    elif how == "interleaved":
        write(own[: len(own) // 2] + frame(nonce[::-1]) + own[len(own) // 2 :])
    elif how == "nested":
        write(own[:30] + b"[" * 100_000 + b"\n")
    elif how == "late":
        threading.Thread(target=lambda: (time.sleep(SHORT), write(own)), daemon=True).start()
    elif how == "fork":
        os.fork()
    elif how == "late fork" and not os.fork():
        time.sleep(SHORT)
    elif how == "slow child" and not os.fork():
        time.sleep(SHORT)
        write(own)
        os._exit(0)
    elif how == "missing":
        time.sleep(3600)
    elif how == "ends":
        os._exit(0)
    used.append(nonce)
