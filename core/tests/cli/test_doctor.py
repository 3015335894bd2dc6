"""`toolrl doctor`: imports targets, runs self-checks, shows what broke a plugin."""

from __future__ import annotations

import json
from typing import Any

CHECKS = """
from toolrl import Component, hookimpl

@hookimpl
def toolrl_rewards():
    for name in ("fine", "lost", "raises", "optional", "notype"):
        yield Component(name, f"toolrl_plugin_checks.thing:{'Nothing' if name == 'lost' else 'Thing'}",
                        options="toolrl_plugin_checks.thing:check_fine" if name == "notype" else None,
                        check=f"toolrl_plugin_checks.thing:check_{name}" if name != "lost" else None)
"""
THING = """
from toolrl.errors import PluginError

class Thing: ...

def check_fine(): return "all there"
check_notype = check_fine
def check_raises(): raise PluginError("the server is down", hint="Start it.")
def check_optional():
    try:
        import no_such_module_xyz
    except ImportError as error:
        raise PluginError("needs no_such_module_xyz", hint="pip install it") from error
"""


def _findings(site: Any, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = site.run("doctor", *arguments, "--json")
    facts = json.loads(done.stdout)
    assert facts["ok"] == (done.returncode == 0)
    return done.returncode, {finding["name"] or finding["plugin"]: finding for finding in facts["findings"]}


def test_components_are_imported_and_checked(site: Any) -> None:
    site.add("checks", CHECKS, modules={"thing": THING})
    status, found = _findings(site, "checks")
    assert status == 1
    assert {name: finding["status"] for name, finding in found.items()} == {
        "fine": "ok", "lost": "failed", "raises": "failed", "optional": "unavailable", "notype": "failed",
    }  # fmt: skip
    assert found["fine"]["detail"] == "all there"
    assert "has no attribute 'Nothing'" in found["lost"]["detail"]
    assert (found["raises"]["detail"], found["raises"]["next"]) == ("the server is down", "Start it.")
    assert "not a pydantic model" in found["notype"]["detail"]


def test_an_optional_package_that_is_missing_is_no_failure(site: Any) -> None:
    site.add("checks", CHECKS.replace('("fine", "lost", "raises", "optional", "notype")', '("fine", "optional")'),
             modules={"thing": THING})  # fmt: skip
    done = site.run("doctor", "checks")
    assert done.returncode == 0, done.stdout
    assert "→ pip install it" in done.stdout


def test_a_good_plugin_among_bad_ones_is_well(troubled_site: Any) -> None:
    done = troubled_site.run("doctor", "good")
    assert done.returncode == 0, done.stdout
    assert "everything works" in done.stdout


def test_a_broken_plugin_shows_its_traceback(troubled_site: Any) -> None:
    done = troubled_site.run("doctor", "raising")
    assert done.returncode == 1
    assert "raise RuntimeError('boom at import')" in done.stdout
    assert "1 failed" in done.stdout


def test_all_plugins_at_once(troubled_site: Any) -> None:
    done = troubled_site.run("doctor", env={"TOOLRL_DISABLE": "raising,ghost"})
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert any(line.startswith("python ") for line in lines)
    (raising,) = [line for line in lines if line.startswith("raising ")]
    assert "disabled" in raising
    assert "note: TOOLRL_DISABLE names 'ghost', and no plugin of that name is installed" in lines
    one = troubled_site.run("doctor", "good", env={"TOOLRL_DISABLE": "raising,ghost"})
    assert "note:" not in one.stdout


def test_a_command_that_core_hides_is_a_failure(site: Any) -> None:
    source = CHECKS.replace("toolrl_rewards", "toolrl_commands").replace("plugin_checks", "plugin_train")
    site.add("train", source.replace('("fine", "lost", "raises", "optional", "notype")', '("fine",)'),
             modules={"thing": THING})  # fmt: skip
    status, found = _findings(site, "train")
    assert status == 1
    assert "`toolrl train` is a command of toolrl's own" in found["fine"]["detail"]


def test_progress_is_shown_on_standard_error(troubled_site: Any) -> None:
    done = troubled_site.run("doctor", "good", "--json")
    assert done.stderr == "checking good (1 of 1)\n"
    assert json.loads(done.stdout)["ok"]


def test_commands_of_one_name_are_not_remarked_on(site: Any) -> None:
    """They are reached by their plugin's name."""
    for name in ("one", "two"):
        source = CHECKS.replace("plugin_checks", f"plugin_{name}")
        source = source.replace('("fine", "lost", "raises", "optional", "notype")', '("fine",)')
        site.add(name, source.replace("toolrl_rewards", "toolrl_commands"), modules={"thing": THING})
        site.add(f"{name}r", source.replace(f"plugin_{name}", f"plugin_{name}r"), modules={"thing": THING})
    notes = [line for line in site.run("doctor").stdout.splitlines() if line.startswith("note: ")]
    assert [note for note in notes if "commands" in note] == []
    assert "note: rewards: the short name of oner/fine is taken twice; only the full one works" in notes


def test_an_unknown_plugin(troubled_site: Any) -> None:
    done = troubled_site.run("doctor", "goood")
    assert done.returncode == 2
    assert "no plugin is named 'goood'" in done.stderr
    assert "Did you mean 'good'?" in done.stderr
