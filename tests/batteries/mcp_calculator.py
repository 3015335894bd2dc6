"""An MCP server over stdio with a tool `calculator`, which adds. It notes its process, and those that this one descends
from, in the file that its argument names. For Linux."""

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


def line_of(process: int) -> list[int]:
    """A process, who started it, and so on."""
    found = [process]
    while found[-1] > 1:
        stat = Path(f"/proc/{found[-1]}/stat").read_text()
        found.append(int(stat.rpartition(")")[2].split()[1]))
    return found


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        file.write(" ".join(map(str, line_of(os.getpid()))) + "\n")
    app.run()
