"""An MCP server over stdio that offers tools whose schemas take long to check: `costly_tools_server.py TOOLS`.

TOOLS is a JSON list of `{"name": …, "inputSchema": …}`, in a file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

listed = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def answer(request: dict[str, object]) -> dict[str, object]:
    if request["method"] == "initialize":
        params: dict[str, object] = request["params"]  # type: ignore[assignment]
        about = {"name": "costly", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    return {"tools": listed} if request["method"] == "tools/list" else {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}), flush=True)
