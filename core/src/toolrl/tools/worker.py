"""What a worker process does: reads calls from its input, runs them one after the other, writes what came of them.

Started as a script by `toolrl.tools.processes`. Frames are JSON after eight bytes with its length, in both directions:
what comes back from a process in which a model's code may have run is never unpickled. The process's own input and
output are moved out of the tool's sight, so that a print doesn't disturb them. It ends when its input ends, which is
when the process that started it is gone, even while a tool runs.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

HEADER = 8
Run = Callable[[Mapping[str, Any]], Any]


def main() -> None:
    """The process's life."""
    sys.path[:] = json.loads(sys.argv[1])
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, calls), daemon=True).start()
    tools: dict[str, Run] = {}
    while True:
        reply = _reply(calls.get(), tools)
        replies.write(len(reply).to_bytes(HEADER, "big") + reply)
        replies.flush()


def _read(requests: BinaryIO, calls: queue.SimpleQueue[bytes]) -> None:
    while True:
        frame = read_frame(requests)
        if frame is None:
            os._exit(0)
        calls.put(frame)


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame, or None at the end of the stream."""
    header = stream.read(HEADER)
    if len(header) < HEADER:
        return None
    length = int.from_bytes(header, "big")
    body = stream.read(length)
    return body if len(body) == length else None


def _reply(frame: bytes, tools: dict[str, Run]) -> bytes:
    try:
        return json.dumps(_answer(json.loads(frame), tools)).encode()
    except BaseException as error:  # noqa: BLE001 - what JSON can't hold
        return json.dumps(_failure(error)).encode()


def _answer(request: dict[str, Any], tools: dict[str, Run]) -> dict[str, Any]:
    target = request["target"]
    try:
        if target not in tools:
            tools[target] = load(target)
        if "arguments" not in request:
            return {"ready": True}
        return {"result": tools[target](request["arguments"])}
    except BaseException as error:  # noqa: BLE001 - also what a library raises to end the process
        return _failure(error)


def load(target: str) -> Run:
    """What runs the calls of the tool at `module:attribute`."""
    from toolrl.tools.function import FunctionTool

    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return (found if isinstance(found, FunctionTool) else FunctionTool(found)).run_here


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
