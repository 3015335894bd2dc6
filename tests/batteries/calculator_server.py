"""An MCP server with one tool, the calculator: `worker_kill_battery.py` kills it."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import MCPServer

from toolrl_plugin_calculator.evaluate import ExpressionEvaluator

server: Any = MCPServer("sums")


@server.tool()
def calculator(expression: str) -> str:
    """Evaluates an arithmetic expression exactly."""
    return ExpressionEvaluator()(expression)


server.run()
