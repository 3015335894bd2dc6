"""`toolrl rlfactory convert` on a `mcp_tools.pydata` that mixes servers, tools of qwen_agent and built-in ones."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from rlfactory_script import SERVERS, needs_plugins

from toolrl.building import build_component
from toolrl.config.frame import ComponentUse
from toolrl.plugins.registry import load_registry
from toolrl.tools import as_toolset
from toolrl.types import ToolCall
from toolrl_plugin_rlfactory.convert.command import RLFactoryConvert
from toolrl_testing import make_build_context, make_episode_context, make_task

MINE = """
from qwen_agent.tools.base import BaseTool, register_tool


@register_tool("mine")
class Mine(BaseTool):
    description = "Says a word."
    parameters = [{"name": "word", "type": "string", "description": "Which", "required": True}]

    def call(self, params, **kwargs):
        return f"{self.cfg['before']} {self._verify_json_format_args(params)['word']}"
"""


SERVER = """
try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer
server = MCPServer("search")


@server.tool()
def query_rag(query: str) -> str:
    return "found " + query


server.run()
"""


def mixed(folder: Path) -> list[dict[str, Any]]:
    """The tools of a converted file with servers, a tool of qwen_agent and a built-in."""
    (folder / "envs" / "tools").mkdir(parents=True)
    (folder / "envs" / "tools" / "mine.py").write_text(MINE)
    entries = [SERVERS.strip()[1:-1].strip(), "'code_interpreter'", "{'name': 'mine', 'before': 'So'}"]
    (folder / "mcp_tools.pydata").write_text(f"[{', '.join(entries)}]")
    tree, _ = RLFactoryConvert().convert("main_grpo.sh", [])
    tools: list[dict[str, Any]] = tree["environments"]["default"]["tools"]
    return tools


def test_each_tool_of_a_mixed_file_goes_to_its_plugin(folder: Path) -> None:
    tools = mixed(folder)
    assert [tool["use"] for tool in tools] == ["mcp", "python/code_interpreter", "qwen_agent"]
    assert tools[2]["options"] == {"tools": [{"name": "mine", "before": "So"}], "imports": ["envs/tools/mine.py"]}
    assert all(tool["policy"]["max_output_tokens"] == 2000 for tool in tools)
    _, report = RLFactoryConvert().convert("main_grpo.sh", [])
    assert any("mine are qwen_agent's: pip install 'toolrl-plugin-qwen-agent[qwen]'" in text for text in report.remarks)
    (folder / "mcp_tools.pydata").write_text("[3, 'web_search', {'name': 'code_interpreter', 'work_dir': 'x'}]")
    tree, report = RLFactoryConvert().convert("main_grpo.sh", [])
    uses = [tool["use"] for tool in tree["environments"]["default"]["tools"]]
    assert uses == ["python/code_interpreter", "qwen_agent"]
    assert "no tool's name" in dict(report.lost)["./mcp_tools.pydata: 3"]
    assert "code_interpreter: work_dir" in dict(report.lost)


def test_the_tools_of_a_mixed_file_start(folder: Path) -> None:
    pytest.importorskip("toolrl_plugin_qwen_agent")
    pytest.importorskip("toolrl_plugin_python")
    pytest.importorskip("qwen_agent.tools")
    pytest.importorskip("mcp")
    needs_plugins()
    (folder / "search.py").write_text(SERVER)
    mixed(folder)
    text = (folder / "mcp_tools.pydata").read_text()
    text = text.replace("'python'", repr(sys.executable)).replace("envs/tools/search.py", "search.py")
    (folder / "mcp_tools.pydata").write_text(text)
    tools = RLFactoryConvert().convert("main_grpo.sh", [])[0]["environments"]["default"]["tools"]
    registry = load_registry()

    async def run() -> list[str]:
        context = make_build_context("tools", run_dir=folder)
        uses = [ComponentUse(use=tool["use"], options=tool.get("options", {})) for tool in tools]
        sets = [build_component(registry, "tools", use, context, "tools") for use in uses]
        toolset = as_toolset(sets, None, context)
        await toolset.start()
        try:
            task = make_task()
            async with toolset.open(task, make_episode_context(task)) as session:
                names = [spec.name for spec in session.specs()]
                search = next(name for name in names if name.endswith("query_rag"))
                calls = [
                    (search, {"query": "x"}),
                    ("code_interpreter", {"code": "print(6 * 7)"}),
                    ("mine", {"word": "be"}),
                ]
                return [(await session.call(ToolCall(name, args))).text.strip() for name, args in calls]
        finally:
            await toolset.stop()

    assert asyncio.run(run()) == ["found x", "42", "So be"]
