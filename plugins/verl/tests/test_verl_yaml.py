"""verl's tool YAML: what it may hold, and what is said of what it may not."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from verl_guides import TOOLS
from verl_harness import Make, play

from toolrl.errors import ConfigError, ToolrlError, ToolsetError
from toolrl.plugins.registry import load_registry
from toolrl_plugin_verl.options import VerlToolOptions
from toolrl_plugin_verl.tool_yaml import read_tool_yaml


def write(folder: Path, text: str) -> str:
    (folder / "tools.yaml").write_text(text, encoding="utf-8")
    return str(folder / "tools.yaml")


def test_the_three_types(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
defaults_: {url: "${oc.env:URL,http://127.0.0.1:8080}/run_code"}
tools:
  - class_name: my_tools.YourTool
    config: {type: native, key: "${KEY}", limit: 3}
    tool_schema: {type: function, function: {name: x}}
  - class_name: verl.tools.mcp_search_tool.MCPSearchTool
    config: {rate_limit: 120, use_mcp: true}
    mcp: {mcp_servers_config_path: ./mcp.json, tool_selected_list: [search]}
  - class_name: verl.tools.sandbox_fusion_tools.SandboxFusionTool
    config: {sandbox_fusion_url: "${defaults_.url}"}
    tool_schema:
  - config: {type: sandbox_fusion, sandbox_fusion_url: x}
  - class_name: verl.tools.gsm8k_tool.Gsm8kTool
    config: {}
""",
    )
    entries = read_tool_yaml(path, {"KEY": "secret"}.get)
    assert [entry.type for entry in entries] == ["native", "mcp", "sandbox_fusion", "sandbox_fusion", "native"]
    assert entries[0].config == {"type": "native", "key": "secret", "limit": 3}
    assert entries[4].config == {}
    assert entries[1].mcp["tool_selected_list"] == ["search"]
    assert entries[2].config["sandbox_fusion_url"] == "http://127.0.0.1:8080/run_code"
    assert entries[2].tool_schema is None
    assert "secret" not in repr(entries)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tools: []", "no list `tools:`"),
        ("- a\n- b", "no list `tools:`"),
        ("", "no list `tools:`"),
        ("tools: [x]", r"tools\[0\]: str, expected class_name"),
        ("tools: [{config: {}}]", "no class_name"),
        ("tools: [{class_name: a.B, config: {type: benchmax}}]", "config.type is 'benchmax', expected one of native"),
        ("tools: [{class_name: a.B, config: []}]", "config is list, expected an object"),
        ("tools: [{class_name: a.B, config: {k: '${oc.env:NO_SUCH_VARIABLE_HERE}'}}]", "isn't set"),
        ("tools: [{class_name: a.B}", "not valid YAML"),
        ("tools: [{class_name: a.B, class_name: a.C}]", "stands here and on line 1"),
    ],
)
def test_what_can_not_be_used_is_told(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_tool_yaml(write(tmp_path, text))


@pytest.mark.parametrize(
    ("class_name", "message"),
    [
        ("nowhere_to_be_found.Tool", "can't be imported: ModuleNotFoundError"),
        ("verl_guide_tools.NoSuchTool", "has no class 'NoSuchTool'"),
        ("json.JSONDecoder", "has no create, execute"),
        ("JustAName", "expected `module.Class`"),
        ("os; import x.Y", "expected `module.Class`"),
    ],
)
def test_a_class_that_can_not_be_used(class_name: str, message: str, make_toolset: Make) -> None:
    with pytest.raises(ConfigError, match=message):
        make_toolset(f"tools:\n  - class_name: '{class_name}'\n")


@pytest.mark.parametrize(
    ("class_name", "message"),
    [
        ("nowhere_to_be_found.Tool", r"tools\[0\].*no module 'nowhere_to_be_found'.*\n?.*python_path"),
        ("verl.tools.agentbay_tool.AgentBayTool", "no stand-in for verl.tools.agentbay_tool: install verl"),
        ("verl.tools.search_tool.SearchTool", None),
        ("own_tools.Tool", None),
    ],
)
def test_check_files_names_a_class_without_a_module(class_name: str, message: str | None, tmp_path: Path) -> None:
    (tmp_path / "own_tools.py").write_text("raise RuntimeError('config check runs no file')")
    (tmp_path / "tools.yaml").write_text(
        f"tools:\n  - class_name: {class_name}\n    config: {{key: '${{oc.env:UNSET}}'}}\n"
    )
    options = VerlToolOptions(tool_config_path=str(tmp_path / "tools.yaml"), python_path=[str(tmp_path)])
    with nullcontext() if message is None else pytest.raises(ConfigError, match=message):
        options.check_files()


def test_a_tool_that_can_not_be_made_is_named(make_toolset: Make) -> None:
    message = r"tools\[0\].*YourTool can't be made: ValueError: YourTool has no tool schema"
    with pytest.raises(ToolrlError, match=message):
        play(make_toolset("tools:\n  - class_name: verl_guide_tools.YourTool\n"))


MCP_YAML = """
tools:
  - class_name: {cls}
    config: {{type: mcp}}
    mcp: {{mcp_servers_config_path: "{path}", tool_selected_list: [add]}}
"""
SERVER = """
try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # mcp 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("toy")

@server.tool()
def add(a: int, b: int) -> str:
    "Adds."
    return str(a + b)

@server.tool()
def subtract(a: int, b: int) -> str:
    "Subtracts."
    return str(a - b)

server.run()
"""


def has_plugin(name: str) -> bool:
    info = load_registry().plugin(name)
    return info is not None and info.usable


def test_mcp_servers_run_by_the_plugin_mcp(make_toolset: Make, tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the MCP SDK isn't installed")
    if not has_plugin("mcp"):
        pytest.skip("toolrl-plugin-mcp isn't installed")
    (tmp_path / "server.py").write_text(SERVER)
    servers = {"mcpServers": {"STDIO Server": {"command": sys.executable, "args": [str(tmp_path / "server.py")]}}}
    (tmp_path / "mcp.json").write_text(json.dumps(servers))
    yaml = MCP_YAML.format(cls="verl.tools.mcp_base_tool.MCPBaseTool", path=tmp_path / "mcp.json")
    played = play(make_toolset(yaml), ("add", {"a": 2, "b": 3}))
    assert [spec.name for spec in played.specs] == ["add"]
    assert (played.results[0].text, played.results[0].error) == ("5", None)


@pytest.mark.parametrize(
    ("cls", "content", "message"),
    [
        ("my.MCPYourTool", "{}", "a subclass of MCPBaseTool isn't run"),
    ],
)
def test_mcp_entries_that_can_not_be_used(
    cls: str, content: str, message: str, make_toolset: Make, tmp_path: Path
) -> None:
    if not has_plugin("mcp"):
        pytest.skip("toolrl-plugin-mcp isn't installed")
    (tmp_path / "mcp.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        make_toolset(MCP_YAML.format(cls=cls, path=tmp_path / "mcp.json"))


def test_a_secret_of_the_environment_stays_out_of_messages(make_toolset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_TEST_KEY", "hush-hush")
    config = "{type: native, retrieval_service_url: 'http://x', rate_limit: '${oc.env:VERL_TEST_KEY}'}"
    yaml = f"tools:\n  - class_name: verl.tools.search_tool.SearchTool\n    config: {config}\n"
    with pytest.raises(ToolsetError, match="SearchTool can't be made: ValueError") as caught:
        play(make_toolset(yaml))
    assert "hush" not in str(caught.value)


def test_sandbox_fusion_runs_by_its_plugin(make_toolset: Make, sandbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_plugin("sandbox-fusion"):
        pytest.skip("toolrl-plugin-sandbox-fusion isn't installed")
    monkeypatch.setenv("SANDBOX", sandbox)
    yaml = TOOLS["sandbox"].replace("default_timeout: 30", "default_timeout: 7")
    given = {"code_interpreter": {"create_kwargs": {"ground_truth": "4"}}}
    played = play(make_toolset(yaml), ("code_interpreter", {"code": "print(1)"}), kwargs=given)
    (result,) = played.results
    assert played.specs[0].description == "A tool for executing code."
    assert (result.text.strip(), result.error) == ("8 characters, 7 s, 1024 MB", None)
