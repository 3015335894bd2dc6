"""`toolrl doctor`: imports targets, runs self-checks, shows what broke a plugin."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolrl.plugins.registry import first_party

OTHERS = ",".join(first_party().keys() - {"start"})
"""Plugins that take long to check."""
CHECKS = """
from toolrl import Component, hookimpl

@hookimpl
def toolrl_rewards():
    for name in NAMES:
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


def _add(site: Any, *names: str) -> None:
    site.add("checks", CHECKS.replace("NAMES", repr(names)), modules={"thing": THING})


def _findings(site: Any, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = site.run("doctor", *arguments, "--json")
    facts = json.loads(done.stdout)
    assert facts["ok"] == (done.returncode == 0)
    return done.returncode, {finding["name"] or finding["plugin"]: finding for finding in facts["findings"]}


def test_components_are_imported_and_checked(site: Any) -> None:
    _add(site, "fine", "lost", "raises", "optional", "notype")
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
    _add(site, "fine", "optional")
    done = site.run("doctor", "checks")
    assert done.returncode == 0, done.stdout
    assert "→ pip install it" in done.stdout


def test_a_name_that_two_plugins_give_is_shown_and_no_failure(site: Any) -> None:
    _add(site, "fine")
    site.add("double", CHECKS.replace("NAMES", "['fine']"))
    done = site.run("doctor", "checks")
    assert done.returncode == 0, done.stdout
    assert "write checks/fine or double/fine" in done.stdout
    assert "1 clashes of names" in done.stdout
    assert "everything works" not in done.stdout


def test_a_requirement_that_is_not_met_is_a_failure(site: Any) -> None:
    site.add("checks", CHECKS.replace("NAMES", "['fine']"), modules={"thing": THING}, requires=("pytest<1",))
    done = site.run("doctor", "checks")
    assert done.returncode == 1
    assert "unmet" in done.stdout
    assert '→ pip install "pytest<1"' in done.stdout


@pytest.mark.parametrize(
    ("plugin", "status", "said"),
    [
        ("good", 0, ["everything works"]),  # among bad ones
        ("raising", 1, ["raise RuntimeError('boom at import')", "1 failed"]),
        ("goood", 2, ["no plugin is named 'goood'", "Did you mean 'good'?"]),
    ],
)
def test_one_plugin(troubled_site: Any, plugin: str, status: int, said: list[str]) -> None:
    done = troubled_site.run("doctor", plugin)
    assert done.returncode == status, done.stdout
    assert all(words in done.stdout + done.stderr for words in said)


def test_all_plugins_at_once(troubled_site: Any) -> None:
    done = troubled_site.run("doctor", env={"TOOLRL_DISABLE": f"{OTHERS},raising"})
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert any(line.startswith("python ") for line in lines)
    (raising,) = [line for line in lines if line.startswith("raising ")]
    assert "disabled" in raising


def test_progress_is_shown_on_standard_error(troubled_site: Any) -> None:
    done = troubled_site.run("doctor", "good", "--json")
    assert done.stderr == "checking good (1 of 1)\n"
    assert json.loads(done.stdout)["ok"]
