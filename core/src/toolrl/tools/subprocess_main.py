"""The main program of a worker process: reads requests, answers them one after the other, writes the replies.

Started as a script by `toolrl.tools.subprocess_pool`, with a module whose `build(*arguments)` returns the function that
answers a request. A frame, in both directions, is its length, the nonce of the request and JSON: what comes back from a
process in which a model's code may have run is never unpickled. The process's own input and output are moved out of the
module's sight, so that a print doesn't disturb them. It ends when its input ends, also in the middle of an answer: the
process that started it is gone.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

HEADER = struct.Struct(">Q16s")
"""Length of the JSON, nonce of the request."""
Run = Callable[[Mapping[str, Any]], Any]


def main() -> None:
    """The process's life."""
    paths, module, *arguments = sys.argv[1:]
    sys.path[:] = json.loads(paths) or sys.path
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    frames: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, frames), daemon=True).start()
    process = os.getpid()
    answer: Run | None = None
    while True:
        nonce, frame = frames.get()
        try:
            answer = answer or importlib.import_module(module).build(*arguments)
            request = json.loads(frame)
            reply = json.dumps(answer(request) if request else {"ready": True}).encode()
        except BaseException as error:  # noqa: BLE001 - also what a library raises to end the process
            reply = json.dumps(_failure(error)).encode()
        if os.getpid() != process:  # A request was answered twice: by the process, and by a child that it forked.
            os._exit(0)
        left = memoryview(HEADER.pack(len(reply), nonce) + reply)
        while left:
            left = left[replies.write(left) :]


def _read(requests: BinaryIO, frames: queue.SimpleQueue[tuple[bytes, bytes]]) -> None:
    while len(header := requests.read(HEADER.size)) == HEADER.size:
        length, nonce = HEADER.unpack(header)
        frames.put((nonce, requests.read(length)))
    os._exit(0)


def _failure(error: BaseException) -> dict[str, Any]:
    from toolrl.errors import ToolError
    from toolrl.tracebacks import format_error

    if isinstance(error, ToolError):
        wish = error.retry_after
        return {
            "tool_error": {
                "kind": str(error.kind),
                "message": _text(error.message or next(iter(error.args), "")),
                "transient": bool(error.transient),
                "retry_after": wish if isinstance(wish, int | float | str) else None,
            }
        }
    return {"crash": {"message": f"{type(error).__name__}: {_text(error)}", "traceback": format_error(error)}}


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - an exception of a tool's own may fail at this, too
        return "(it can't be shown)"


if __name__ == "__main__":
    main()
