"""Options, and the files that name servers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolrl.errors import ConfigError
from toolrl_plugin_mcp.files import read_servers
from toolrl_plugin_mcp.options import McpOptions
from toolrl_plugin_mcp.secrets import Secrets
from toolrl_plugin_mcp.server_options import ServerOptions


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"command": "x"}, "stdio"),
        ({"command": "x", "type": "stdio"}, "stdio"),
        ({"url": "http://h/mcp"}, "streamable-http"),
        ({"url": "http://h/sse"}, "sse"),
        ({"url": "http://h/sse/?key=1"}, "sse"),
        ({"url": "http://h/x", "type": "sse"}, "sse"),
        ({"url": "http://h/sse", "type": "http"}, "streamable-http"),
        ({"url": "http://h/x", "type": "streamable_http"}, "streamable-http"),
        ({"url": "http://h/x", "type": "streamableHttp"}, "streamable-http"),
        ({"url": "https://h/x", "type": "streamable-http"}, "streamable-http"),
    ],
)
def test_transports(entry: dict[str, Any], transport: str) -> None:
    assert ServerOptions.model_validate(entry).transport == transport


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({}, "has neither"),
        ({"command": "x", "url": "http://h"}, "has both"),
        ({"url": "http://h", "type": "stdio"}, "doesn't go with a url"),
        ({"command": "x", "type": "sse"}, "doesn't go with a command"),
        ({"url": "http://h", "type": "websocket"}, "'stdio', 'streamable-http' or 'sse'"),
        ({"command": "x", "arguments": []}, "Extra inputs"),
    ],
)
def test_entries_that_are_none(entry: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        ServerOptions.model_validate(entry)


def test_no_server() -> None:
    with pytest.raises(ValidationError, match="no server is named"):
        McpOptions()


def test_secrets_stay_out_of_what_options_show() -> None:
    options = McpOptions.model_validate(
        {
            "servers": {
                "a": {"command": "x", "env": {"KEY": "hunter2"}},
                "b": {"url": "http://h/x", "headers": {"Authorization": "Bearer hunter2"}},
            }
        }
    )
    assert "hunter2" not in repr(options)
    assert "hunter2" not in str(options.model_dump(mode="json"))
    with pytest.raises(ValidationError) as caught:
        McpOptions.model_validate({"servers": {"a": {"command": "x", "env": {"KEY": "hunter2"}, "url": "http://h"}}})
    assert "hunter2" not in str(caught.value)


def test_json(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mcp.json"
    servers = {
        "time": {"command": "python", "args": ["-m", "mcp_server_time"], "env": None, "autoApprove": ["x"]},
        "web": {"url": "http://h/x", "transport": "sse", "headers": {"A": "b"}},
        "off": {"command": "x", "disabled": True},
        "on": {"command": "x", "disabled": False},
    }
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8-sig")
    with caplog.at_level(logging.WARNING):
        read = read_servers(path)
    assert list(read) == ["time", "web", "on"]
    assert read["time"].args == ["-m", "mcp_server_time"]
    assert read["web"].transport == "sse"
    assert "mcpServers.time: autoApprove left out" in caplog.text


def test_pydata(tmp_path: Path) -> None:
    path = tmp_path / "mcp_tools.pydata"
    path.write_text(
        """
[
    {'mcpServers': {
        'search': {'command': 'python', 'args': ['envs/tools/search.py']},  # a comment
    }},
    {'mcpServers': {'far': {'url': 'http://h:1/x'}, 'new': {'type': 'streamable-http', 'url': 'http://h:2/x'}}},
]
"""
    )
    read = read_servers(path)
    assert {name: server.transport for name, server in read.items()} == {
        "search": "stdio",
        "far": "sse",
        "new": "streamable-http",
    }


def test_tools_of_others_in_a_file_are_left_to_them(tmp_path: Path) -> None:
    path = tmp_path / "a.pydata"
    path.write_text("['code_interpreter', {'name': 'mine', 'key': 1}, {'mcpServers': {'a': {'command': 'x'}}}]")
    assert list(read_servers(path)) == ["a"]
    McpOptions(config=path).check_files()
    path.write_text("['code_interpreter', {'name': 'mine'}]")
    with pytest.raises(ConfigError, match="names no server that is enabled"):
        McpOptions(config=path).check_files()


def test_an_auth_token_becomes_a_header(tmp_path: Path) -> None:
    path = tmp_path / "verl.json"
    path.write_text('{"mcpServers": {"a": {"url": "http://x/mcp", "auth_token": "t", "headers": {"X": "1"}}}}')
    read = read_servers(path)["a"]
    assert {name: value.get_secret_value() for name, value in read.headers.items()} == {
        "X": "1",
        "Authorization": "Bearer t",
    }
    assert read.transport == "sse"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.json", "{", "a.json:1 isn't JSON"),
        ("a.json", "[{'mcpServers': {}}]", "a Python literal has to be in a file called"),
        ("a.json", "3", "expected a mapping with the key 'mcpServers'"),
        ("a.json", '{"mcpServers": {"a": "npx"}}', "mcpServers.a: expected a mapping"),
        ("a.json", '{"mcpServers": {"a": {"args": []}}}', "mcpServers.a: .* has neither"),
        ("a.json", '{"mcpServers": {"a": {"command": "x", "args": [1]}}}', r"mcpServers.a.args\[0\]: .*string"),
        ("a.json", '{"mcpServers": {"a": {"command": "${NO_SUCH_VARIABLE}"}}}', "NO_SUCH_VARIABLE isn't set"),
        ("a.pydata", "[{'mcpServers': __import__('os').environ}]", "isn't a Python literal"),
        ("a.pydata", "[" * 100_000, "isn't a Python literal"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, text: str, problem: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"(?i){problem}"):
        read_servers(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_servers(tmp_path / "none.json", "environments.default.tools[0]")


def test_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_TOKEN", "hunter2")
    path = tmp_path / "a.json"
    server = {"url": "${TOY_URL:-http://h/x}", "headers": {"Authorization": "Bearer ${TOY_TOKEN}", "X": "$${plain}"}}
    path.write_text(json.dumps({"mcpServers": {"a": server}}))
    read = read_servers(path)["a"]
    assert read.url == "http://h/x"
    assert {name: value.get_secret_value() for name, value in read.headers.items()} == {
        "Authorization": "Bearer hunter2",
        "X": "${plain}",
    }


def test_secrets_are_hidden_in_each_form() -> None:
    env = {"A": 'quo"ted\\key', "B": "-----BEGIN-----\nline-of-a-key\n", "C": "true", "D": "1", "E": "error"}
    url = "https://user:pass%20word@a/?key=que%2Fry&k=v"
    servers = [ServerOptions(command="x", env=env), ServerOptions(url=url, headers={"X": "Bearer headerkey"})]
    secrets = Secrets(servers)
    for text in ('quo"ted\\key', 'quo\\"ted\\\\key', "line-of-a-key", "que%2Fry", "que/ry", "pass%20word", "headerkey"):
        assert secrets.hide(f"<{text}>") == "<***>", text
    assert secrets.hide("error 1: true") == "error 1: true"
