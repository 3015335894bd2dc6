"""An MCP server over stdio with a tool `calculator`, which adds. As its first argument a file to note its process and
the one that started it in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # mcp 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer

app: Any = MCPServer("sums")


@app.tool()
def calculator(expression: str) -> str:
    """Adds.

    Args:
        expression: Two numbers with a plus.
    """
    return str(sum(map(int, expression.split("+"))))


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {os.getppid()}\n")
    app.run()
