"""`toolrl openenv show` with arguments that are wrong, and what it prints of a server without openenv."""

from __future__ import annotations

import pytest
from openenv_wire_server import TOOLS, FakeServer, in_thread

from toolrl.cli.main import main


def test_it_prints_tools_or_the_first_observation(capsys: pytest.CaptureFixture[str]) -> None:
    server = in_thread(FakeServer(tools=TOOLS))
    assert main(["openenv", "show", server.url]) == 0
    shown = capsys.readouterr().out
    assert 'echo {"text": string}' in shown
    assert "shows nothing" in shown
    talk = in_thread(FakeServer())
    assert main(["openenv", "show", talk.url]) == 0
    assert "Ready." in capsys.readouterr().out


def test_what_is_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openenv", "show", "127.0.0.1:8000"]) != 0
    assert "url" in capsys.readouterr().err
