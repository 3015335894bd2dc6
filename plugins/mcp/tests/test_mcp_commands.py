"""The commands `toolrl mcp tools` and `toolrl mcp call`, as a user runs them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from toolrl.cli.main import main

RAW = str(Path(__file__).parent / "servers" / "raw.py")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    servers = {"a": {"command": sys.executable, "args": [RAW]}}
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


@pytest.fixture
def toolrl(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process; its status, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        return main(["mcp", *arguments]), *capsys.readouterr()

    return run


Toolrl = Callable[..., tuple[int, str, str]]


def test_tools(file: Path, toolrl: Toolrl) -> None:
    status, shown, error = toolrl("tools", str(file))
    assert status == 0, error
    assert 'a-echo {"text": string (optional), "n": integer (optional)}\n    The tool echo.\n' in shown
    assert json.loads(toolrl("tools", str(file), "--json")[1])[0]["function"]["name"] == "a-echo"


def test_calls(file: Path, toolrl: Toolrl) -> None:
    assert toolrl("call", str(file), "echo", '{"x": [1]}')[:2] == (0, '{"x": [1]}\n')
    assert toolrl("call", str(file), "split")[:2] == (1, "no end\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["call", "{file}", "echo", "{{"], "aren't JSON"),
        (["call", "{file}", "echo", "[]"], "aren't a JSON object"),
        (["tools", "none.json"], "none.json can't be read"),
    ],
)
def test_mistakes(file: Path, toolrl: Toolrl, arguments: list[str], problem: str) -> None:
    status, _, error = toolrl(*(argument.format(file=file) for argument in arguments))
    assert status != 0
    assert problem in error
