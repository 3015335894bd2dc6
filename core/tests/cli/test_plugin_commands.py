"""Commands of plugins: `toolrl <plugin> <verb>`."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.cli import plugin_commands
from toolrl.cli.main import EXIT_ERROR, EXIT_USAGE, main
from toolrl.plugins.registry import Registry


def test_a_plugins_command_runs_and_gives_its_status(full_site: Any) -> None:
    done = full_site.run("full", "count", "one", "four")
    assert done.stdout.startswith("2 words")
    assert done.returncode == 4


def test_a_verb_of_one_plugin_alone_needs_no_plugin(full_site: Any) -> None:
    done = full_site.run("count", "one", "four")
    assert done.stdout.startswith("2 words")
    assert done.returncode == 4
    assert "usage: toolrl count" in full_site.run("count", "--help").stdout


def test_its_commands_are_listed(full_site: Any) -> None:
    done = full_site.run("full", "--help")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].split() == ["count", "The", "count."]
    help_text = full_site.run("full", "count", "--help").stdout
    assert "usage: toolrl full count" in help_text
    assert "--fail" in help_text


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["full"], EXIT_USAGE, "toolrl full: which command?\n  → There are: count."),
        (["full", "cont"], EXIT_USAGE, "the plugin 'full' has no command 'cont'\n  → Did you mean 'count'?"),
        (["good", "x"], EXIT_USAGE, "the plugin 'good' has no commands"),
        (["fulll", "count"], EXIT_USAGE, "no plugin of that name is installed\n  → Did you mean `toolrl full`?"),
        (
            ["raising", "x"],
            EXIT_ERROR,
            "the plugin 'raising' is broken: RuntimeError: boom at import\n  → toolrl doctor",
        ),
        (["from_the_future", "--help"], EXIT_ERROR, "the plugin 'from_the_future' is incompatible"),
    ],
)
def test_what_is_not_there(full_site: Any, words: list[str], status: int, message: str) -> None:
    done = full_site.run(*words)
    assert done.returncode == status
    assert message in done.stderr


def test_a_plugin_that_is_not_installed_names_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugin_commands, "load_registry", lambda: Registry([]))
    for plugin, words in {"mcp": ["mcp", "tools", "x.yaml"], "torch": ["sft", "x.yaml"], "start": ["doctor"]}.items():
        assert main(words) == EXIT_USAGE
        said = capsys.readouterr().err
        assert f"toolrl {words[0]}: the plugin '{plugin}' isn't installed\n  → Run `pip install toolrl-plugin-" in said
    assert main(["convert", "x.yaml"]) == EXIT_USAGE
    assert "3 plugins have a command 'convert'\n  → Say whose: `toolrl areal convert`" in capsys.readouterr().err
