"""An MCP server over stdio without the SDK, for what the SDK wouldn't do.

    python raw.py [MODE …]

Modes: `paged` lists its tools in pages of two; `endless` never ends its list; `noisy` prints what is no message between
its messages; `mute` never answers; `early` ends at once; `nonsense` answers the handshake with nonsense; `future` asks
for a protocol version that nobody knows; `odd` lists tools with odd names and schemas; `bare` has no tools; `error`
answers every call with a JSON-RPC error; `late` puts the id of an answer behind its result, as the TypeScript SDK does;
`wide` lists a tool with a very long description.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

MODES = set(sys.argv[1:])
LOCK = threading.Lock()
NOTES: list[str] = []
OBJECT = {"type": "object", "properties": {}}
ODD = [
    {"name": "päivä/tänään", "description": "odd letters", "inputSchema": OBJECT},
    {"name": "9 lives", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    {"name": "long" * 40, "description": "long", "inputSchema": OBJECT},
    {"name": "broken", "description": "no schema", "inputSchema": {"type": "object", "properties": {"a": {"type": 7}}}},
    {
        "name": "far",
        "description": "refers to elsewhere",
        "inputSchema": {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}},
    },
    {
        "name": "near",
        "description": "refers to itself",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/a"}},
            "required": ["a", "b"],
            "$defs": {"a": {"type": "integer"}},
        },
    },
]


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"The tool {name}.", "inputSchema": OBJECT}


TOOLS = [tool(f"tool{number}") for number in range(5)] if MODES & {"paged", "endless"} else []
if "odd" in MODES:
    TOOLS = ODD
elif not TOOLS and "bare" not in MODES:
    TOOLS = [
        tool(name)
        for name in ("echo", "slow", "crash", "note", "pid", "split", "half", "latin", "big", "flood", "misfit")
    ]
    TOOLS[-1]["outputSchema"] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    if "wide" in MODES:
        TOOLS[0]["description"] = "long " * 100_000
    TOOLS[0]["inputSchema"] = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}
    TOOLS[1]["annotations"] = {"readOnlyHint": True}


def send(message: dict[str, Any]) -> None:
    whole = {"jsonrpc": "2.0", **message}
    if "late" in MODES and "result" in whole:
        whole = {"result": whole["result"], "jsonrpc": "2.0", "id": whole["id"]}
    data = json.dumps(whole).encode().replace(b"\\udce9", b"\xe9") + b"\n"  # A byte of another encoding.
    with LOCK:
        if "noisy" in MODES:
            os.write(1, b"loading 50%\n\n\xff\xfe\n{not json\n[1, 2]\n" + b"n" * 300_000 + b"\n")
        while data:
            data = data[os.write(1, data) :]


def main() -> None:
    if "early" in MODES:
        print("no API key: hunter2-secret", file=sys.stderr)
        sys.exit(3)
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue  # An answer, or a notification.
        if "mute" not in MODES:
            threading.Thread(target=handle, args=(message,), daemon=True).start()


def handle(message: dict[str, Any]) -> None:
    method, number, params = message["method"], message["id"], message.get("params") or {}
    try:
        result = answer(method, params)
    except ValueError as error:
        send({"id": number, "error": {"code": -32601, "message": str(error)}})
    else:
        send({"id": number, "result": result})


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        if "nonsense" in MODES:
            return {"hello": "there"}
        capabilities = {"tools": {"listChanged": True}}
        version = "2999-01-01" if "future" in MODES else "2025-06-18"
        info = {"name": "raw", "version": "1"}
        return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list" and "bare" not in MODES:
        return page(params.get("cursor"))
    if method == "tools/call":
        return call(params["name"], params.get("arguments") or {})
    raise ValueError(f"no method {method}")


def page(cursor: str | None) -> dict[str, Any]:
    if "endless" in MODES:
        return {"tools": [tool(f"tool{cursor or 0}")], "nextCursor": str(int(cursor or 0) + 1)}
    if "paged" not in MODES:
        return {"tools": TOOLS}
    start = int(cursor or 0)
    following = {"nextCursor": str(start + 2)} if start + 2 < len(TOOLS) else {}
    return {"tools": TOOLS[start : start + 2], **following}


def text(value: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(value)}]}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if "error" in MODES:
        raise ValueError("no such luck")
    if name == "slow":
        time.sleep(float(arguments.get("seconds", 0.2)))
    elif name == "crash":
        print("about to crash", file=sys.stderr, flush=True)
        os._exit(int(arguments.get("status", 3)))
    elif name == "note":
        NOTES.append(str(arguments.get("text")))
        return text(", ".join(NOTES))
    elif name == "pid":
        return text(os.getpid())
    elif name == "big":
        return text("x" * int(arguments["characters"]))
    elif name == "flood":
        for kind in ("progress", "message", "resources/updated"):
            send({"method": f"notifications/{kind}", "params": {"data": "y" * int(arguments["characters"])}})
    elif name == "misfit":
        return {**text("7"), **({"structuredContent": arguments} if arguments else {})}
    elif name == "latin":
        return text("caf\udce9")
    elif name == "half":  # As of a server that cuts a text in the midst of a character.
        return text("cut \ud83d")
    elif name == "split":
        return {"content": [{"type": "text", "text": "no end"}], "isError": True}
    return text(json.dumps(arguments, ensure_ascii=False))


if __name__ == "__main__":
    main()
