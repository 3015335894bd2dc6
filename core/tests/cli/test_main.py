"""The command `toolrl`: finding commands, and how errors come out."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

from toolrl import __version__
from toolrl.cli.common import PLUGIN_COMMANDS
from toolrl.cli.main import COMMANDS, EXIT_ERROR, EXIT_INTERRUPT, EXIT_PIPE, EXIT_USAGE, main


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_line_and_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module_name, line = COMMANDS[name]
    module = importlib.import_module(module_name)
    assert line == module.HELP
    assert f"toolrl {name}" in module.EXAMPLE
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: toolrl {name}" in text
    assert module.EXAMPLE.splitlines()[0] in text


def test_the_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        text = capsys.readouterr().out
        lines = {name: line for name, (_, line) in COMMANDS.items()} | {
            name: line for name, (_, line) in PLUGIN_COMMANDS.items()
        }
        assert all(name in text and line in text for name, line in lines.items())
    assert main([]) == EXIT_USAGE
    assert "commands:" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"toolrl {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["list-plugin"], "toolrl has no command 'list-plugin'", "Did you mean `toolrl list-plugins`?"),
        (["zzz"], "toolrl has no command 'zzz'", "`toolrl --help` lists the commands."),
        (["--nope", "train"], "unknown option '--nope'", "`toolrl --help`"),
    ],
)
def test_an_unknown_command(words: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == EXIT_USAGE
    error = capsys.readouterr().err
    assert message in error
    assert hint in error


def test_an_error_is_a_message_with_the_next_step(full_site: Any) -> None:
    done = full_site.run("full", "count", "--fail")
    assert done.returncode == EXIT_ERROR
    assert done.stderr == "error: shelf 3: the words are gone\n  → Look under the table.\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("before", "after", "env"), [(["--debug"], [], {}), ([], ["--debug"], {}), ([], [], {"TOOLRL_DEBUG": "1"})]
)
def test_debug_shows_the_traceback(full_site: Any, before: list[str], after: list[str], env: dict[str, str]) -> None:
    done = full_site.run(*before, "full", "count", "--fail", *after, env=env)
    assert done.returncode == EXIT_ERROR
    assert "Traceback" in done.stderr
    assert "in run" in done.stderr


def test_with_json_an_error_is_an_object_on_stdout(full_site: Any) -> None:
    done = full_site.run("full", "count", "--fail", "--json")
    assert done.returncode == EXIT_ERROR
    assert json.loads(done.stdout) == {
        "error": {
            "type": "ToolrlError",
            "fault": "toolrl",
            "message": "the words are gone",
            "where": "shelf 3",
            "hint": "Look under the table.",
        }
    }
    assert done.stderr == ""


def test_a_bug_shows_its_traceback(full_site: Any) -> None:
    done = full_site.run("full", "count", "--crash")
    assert done.returncode == EXIT_ERROR
    assert "ZeroDivisionError: a bug" in done.stderr
    assert "Traceback" in done.stderr
    done = full_site.run("full", "count", "--crash", "--json")
    assert json.loads(done.stdout)["error"]["type"] == "ZeroDivisionError"


def test_an_interrupt_is_130(full_site: Any) -> None:
    done = full_site.run("full", "count", "--interrupt")
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPT, "interrupted\n")


def test_another_broken_pipe_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(words: list[str]) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("toolrl.cli.main._find", broken)
    assert main(["list-plugins"]) == EXIT_ERROR
    assert "Broken pipe" in capsys.readouterr().err


def test_a_closed_pipe_is_no_error(full_site: Any) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "toolrl", "full", "count", "many"],
        env={"PYTHONPATH": str(full_site.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == EXIT_PIPE


@pytest.mark.parametrize(
    "mode", [[], ["--debug"], ["--json"], ["--debug", "--json"], ["--crash"], ["--crash", "--json"]]
)
def test_no_error_of_a_run_shows_a_secret(mode: list[str], full_site: Any, config_file: Any) -> None:
    secret = 'se"cré\tt'
    done = full_site.run("full", "count", "--read", str(config_file), *mode, env={"TOKEN": secret})
    assert done.returncode == EXIT_ERROR
    said = done.stdout + done.stderr
    assert "${TOKEN}" in said
    assert ("Traceback" in said) == bool({"--debug", "--crash"} & set(mode))
    for form in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]):
        assert form not in said
    if "--json" in mode:
        assert "${TOKEN}" in json.loads(done.stdout)["error"]["message"]
