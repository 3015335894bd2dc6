"""The command line as a whole: a site full of bad plugins, a config full of mistakes, and help for everything."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolrl.cli.main import COMMANDS

TOOL = """
    from toolrl import Component, hookimpl

    @hookimpl
    def toolrl_tools():
        yield Component("lookup", "{package}.tools:lookup", summary="Looks something up.")
"""
LOOKUP = """
    from toolrl.tools import tool

    @tool
    def lookup(key: str) -> str:
        '''Look something up.

        Args:
            key: What.
        '''
        return key
"""


def a_plugin(name: str, **changes: str) -> dict[str, str]:
    source = TOOL.replace("{package}", f"toolrl_plugin_{name}")
    for old, new in changes.items():
        source = source.replace(old, new)
    return {"plugin": source, "tools": LOOKUP}


BAD = {
    "absent": {"plugin": "import no_such_package_of_anybody\n"},
    "misspelled": a_plugin("misspelled", toolrl_tools="toolrl_tool"),
    "asynchronous": a_plugin("asynchronous", **{"def toolrl_tools": "async def toolrl_tools"}),
}
EXPECTED = {
    "absent": (
        "broken",
        "ModuleNotFoundError: No module named 'no_such_package_of_anybody'",
        "pip install no_such_package_of_anybody (or what else brings the module 'no_such_package_of_anybody')",
    ),
    "tomorrow": (
        "incompatible",
        "toolrl-plugin-tomorrow 1.0 needs toolrl >=9, this is toolrl 0.1.0",
        'pip install -U "toolrl>=9"',
    ),
    "misspelled": ("broken", "there is no hook 'toolrl_tool'", "Did you mean 'toolrl_tools'?"),
    "asynchronous": ("broken", "toolrl_tools is `async def`, and nothing awaits a hook", "Write `def toolrl_tools`."),
}


@pytest.fixture
def troubled(own_place: Any) -> Any:
    """A workplace with every kind of bad plugin beside the good ones, two of which give one name."""
    site = own_place.site()
    for name, modules in BAD.items():
        site.add(name, modules)
    site.add("tomorrow", a_plugin("tomorrow"), requires="toolrl>=9")
    for name in ("red", "blue"):
        site.add(name, a_plugin(name))
    own_place.troubled = site
    return own_place


def test_bad_plugins_are_listed_with_their_reason_and_stop_no_command(troubled: Any) -> None:
    site = troubled.troubled
    done = troubled.toolrl("list-plugins", "--json", site=site)
    assert (done.returncode, done.stderr) == (0, "")
    listed = {plugin["name"]: plugin for plugin in done.json()["plugins"]}
    for name, (status, reason, hint) in EXPECTED.items():
        assert listed[name]["status"] == status
        assert listed[name]["reason"] == reason
        assert listed[name]["next"].startswith(hint)
        assert listed[name]["components"] == {}
    for name in ("builtin", "calculator", "math", "qwen", "transformers", "red", "blue"):
        assert listed[name]["status"] == "ok"
    table = troubled.toolrl("list-plugins", site=site)
    assert (table.returncode, table.stderr) == (0, "")
    for _, reason, hint in EXPECTED.values():
        assert reason in table.stdout
        assert f"→ {hint}" in table.stdout

    done = troubled.toolrl("doctor", "calculator", site=site)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "everything works")
    done = troubled.toolrl("doctor", "absent", site=site)
    assert done.returncode == 1
    assert "Traceback" in done.stdout
    assert "import no_such_package_of_anybody" in done.stdout
    done = troubled.toolrl("parse", "--parser", "hermes", "four", site=site)
    assert done.returncode == 0, done.stderr
    done = troubled.toolrl("config", "schema", site=site)
    assert done.returncode == 0, done.stderr
    assert done.json()["properties"]


def test_bad_plugins_stop_no_run_that_does_not_name_them(troubled: Any) -> None:
    config = troubled.config({"model": {"path": "runs/warm"}, "trainer": {"steps": 1}})
    checked = troubled.toolrl("config", "check", config, site=troubled.troubled)
    assert (checked.returncode, checked.stderr) == (0, "")
    done = troubled.toolrl("train", config, "--json", site=troubled.troubled)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.json()["steps"] == 1


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ("absent/lookup", ["the plugin 'absent' is broken", "no_such_package_of_anybody"]),
        ("tomorrow", ["the plugin 'tomorrow' is incompatible: toolrl-plugin-tomorrow 1.0 needs toolrl >=9"]),
        ("lookup", ["red/lookup", "blue/lookup"]),
        ("calculater", ["there is no tool named 'calculater'", "did you mean 'calculator'?", "not loaded: "]),
    ],
)
def test_a_config_that_names_one_is_told_why(tool: str, says: list[str], troubled: Any, here: Any) -> None:
    config = troubled.config({"environments": {"default": {"tools": [tool]}}})
    done = here("config", "check", config, site=troubled.troubled, place=troubled)
    assert done.returncode == 1
    assert "environments.default.tools[0]" in done.stderr
    for text in says:
        assert text in done.stderr


def test_both_of_two_alike_are_reached_by_their_full_names(troubled: Any, here: Any) -> None:
    tools = [{"use": "red/lookup"}, {"use": "blue/lookup", "as": {"lookup": "look_elsewhere"}}]
    config = troubled.config({"environments": {"default": {"tools": tools}}})
    done = here("config", "check", config, "--json", site=troubled.troubled, place=troubled)
    assert done.returncode == 0, done.stderr
    assert done.json()["components"]["tools"] == ["red/lookup", "blue/lookup"]
    done = here("rollout", config, "--tasks", "1", "--episodes", "1", "--json", site=troubled.troubled)
    assert done.returncode == 0, done.stderr


# Configs.

MISTAKES = {
    "trainer": {"steps": 0},
    "environments": {"default": {"tools": [{"use": "calculator", "options": {"precision": 0}}]}},
    "algorithm": {"groups": 8},
}
FOUND = [
    "trainer.steps: Input should be ≥ 1 (got 0)",
    "algorithm.groups: unknown key; did you mean 'group_size'?",
    "environments.default.tools[0].options.precision: Input should be ≥ 1 (got 0) [calculator]",
]


@pytest.mark.parametrize("command", [("config", "check"), ("train",), ("eval",), ("rollout",), ("sft",)])
def test_every_mistake_of_a_config_is_reported_at_once(command: tuple[str, ...], own_place: Any, here: Any) -> None:
    config = own_place.config(MISTAKES)
    done = here(*command, config, "--json", place=own_place)
    assert (done.returncode, done.stderr) == (1, "")
    assert sorted(done.json()["error"]["problems"]) == sorted(FOUND)
    done = here(*command, config)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{config}: 3 problems" in done.stderr
    for problem in FOUND:
        assert problem in done.stderr
    assert [path.name for path in (own_place.folder / "runs").iterdir()] == ["warm"], "nothing was started"


# Help.


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help_with_an_example(command: str, here: Any) -> None:
    done = here(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: toolrl {command} ")
    _, found, example = done.stdout.partition("example:\n")
    assert found
    assert example.strip().startswith(f"toolrl {command}")
    assert "--json" in done.stdout or command == "config"


def test_the_script_and_the_module_are_one_program(own_place: Any) -> None:
    script = shutil.which("toolrl", path=str(Path(sys.executable).parent))
    if script is None:
        pytest.skip("the script `toolrl` isn't installed beside this Python")
    for arguments in (["--version"], ["--help"], ["list-plugins", "--json"], ["parse", "--help"], ["trian"], []):
        module = own_place.toolrl(*arguments)
        other = subprocess.run([script, *arguments], cwd=own_place.folder, capture_output=True, text=True, check=False)
        assert (other.returncode, other.stdout, other.stderr) == (module.returncode, module.stdout, module.stderr)
