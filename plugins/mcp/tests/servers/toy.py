"""An MCP server for tests, written with the SDK.

python toy.py [stdio | sse PORT | streamable-http PORT]
"""

from __future__ import annotations

import base64
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import anyio
from mcp import types
from mcp.server.mcpserver import MCPServer

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAIAAAA2iEnWAAAAEElEQVR4nGP4z8AARAwQCgAf7gP9i18U1AAAAABJRU5ErkJggg=="
)
"""A picture of 2 by 3 pixels."""

transport = sys.argv[1] if len(sys.argv) > 1 else "stdio"
port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
where = {"host": "127.0.0.1", "port": port} if port else {}
app = MCPServer("toy")
notes: list[str] = []
cancelled: list[str] = []
begun: list[str] = []


@app.tool()
def add(a: int, b: int) -> str:
    """Adds two whole numbers."""
    return str(a + b)


@app.tool()
async def echo(text: str) -> str:
    """Says the text again."""
    return text


@app.tool()
async def fail(why: str = "it was told to") -> str:
    """Fails."""
    raise ValueError(why)


@app.tool()
async def nap(seconds: float) -> str:
    """Sleeps, and lets others run."""
    begun.append(f"nap {seconds}")
    try:
        await anyio.sleep(seconds)
    except BaseException:
        cancelled.append(f"nap {seconds}")
        raise
    return f"slept {seconds}"


@app.tool()
async def freeze(seconds: float, sign: str = "") -> str:
    """Holds up the whole server, once it has made the file `sign`."""
    if sign:
        pathlib.Path(sign).touch()  # noqa: ASYNC240
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    return f"froze {seconds}"


@app.tool()
async def crash(how: str = "exit") -> str:
    """Ends the server's process in mid-call."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


@app.tool()
async def big(characters: int) -> str:
    """A long text."""
    return "x" * characters


@app.tool()
async def numbers(count: int) -> list[int]:
    """A long list: so many contents, and structured content."""
    return list(range(count))


@app.tool()
async def whoami() -> str:
    """The process's number."""
    return str(os.getpid())


@app.tool()
async def note(text: str) -> str:
    """Remembers a text, and says all that it remembers."""
    notes.append(text)
    return ", ".join(notes)


@app.tool()
async def was_cancelled() -> str:
    """The calls that were cancelled."""
    return ", ".join(cancelled) or "none"


@app.tool()
async def has_begun() -> str:
    """The naps that began."""
    return ", ".join(begun) or "none"


@app.tool()
async def say(text: str) -> str:
    """Writes to stderr and, on stdio, prints among the messages what is none."""
    print(text, file=sys.stderr, flush=True)
    os.write(1, f"noise: {text}\n".encode())
    return "said"


@app.tool()
async def children(ignore_term: bool = False) -> str:
    """Starts two processes that outlive their parent, one of them out of its process group."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    command = [sys.executable, "-c", code] if ignore_term else ["sleep", "600"]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": None, "stderr": None}
    near = subprocess.Popen(command, **quiet)  # noqa: ASYNC220
    far = subprocess.Popen(command, start_new_session=True, **quiet)  # noqa: ASYNC220
    return f"{near.pid} {far.pid}"


@app.tool()
async def environment(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "not set")


@app.tool(structured_output=False)
async def contents(kinds: list[str]) -> Any:
    """A result of several pieces."""
    picture = base64.b64encode(DOT).decode()
    made: dict[str, Any] = {
        "text": {"type": "text", "text": "words"},
        "image": {"type": "image", "data": picture, "mimeType": "image/png"},
        "broken": {"type": "image", "data": "bm90IGFuIGltYWdl", "mimeType": "image/png"},
        "audio": {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
        "resource": {"type": "resource", "resource": {"uri": "toy://a", "text": "inside", "mimeType": "text/plain"}},
        "blob": {"type": "resource", "resource": {"uri": "toy://b", "blob": "AAECAw==", "mimeType": "application/zip"}},
        "scan": {"type": "resource", "resource": {"uri": "toy://c", "blob": picture, "mimeType": "image/png"}},
        "link": {"type": "resource_link", "uri": "toy://d", "name": "d", "description": "more"},
    }
    return types.CallToolResult.model_validate({"content": [made[kind] for kind in kinds]})


@app.tool(structured_output=True)
async def weather(city: str) -> dict[str, Any]:
    """Structured data."""
    return {"city": city, "celsius": 21}


if __name__ == "__main__":
    if slow := os.environ.get("TOY_START_SECONDS"):
        time.sleep(float(slow))
    app.run(transport, **where)
