"""`toolrl list-plugins`: what it shows, and what it doesn't import."""

from __future__ import annotations

import json
from typing import Any

PROBE = """
import sys
from toolrl.cli.main import main
status = main(sys.argv[1:])
heavy = ["torch", "transformers", "vllm", "ray", "pydantic", "jsonschema", "yaml", "rich", "numpy"]
print([name for name in heavy if name in sys.modules], file=sys.stderr)
sys.exit(status)
"""


def test_nothing_heavy_is_imported(full_site: Any) -> None:
    for arguments in ([], ["-v"], ["--json"]):
        done = full_site.python("-c", PROBE, "list-plugins", *arguments)
        assert (done.returncode, done.stderr.strip()) == (0, "[]")
        assert "counter" in done.stdout


def test_the_table_shows_troubles_with_reason_and_next_command(full_site: Any) -> None:
    lines = full_site.run("list-plugins").stdout.splitlines()
    text = "\n".join(lines)
    assert lines[0].split() == ["NAME", "VERSION", "STATUS", "COMPONENTS"]
    (good,) = [line for line in lines if line.startswith("good")]
    assert good.split() == ["good", "1.0", "ok", "tools:", "demo_tool"]
    for name, status in (("misspelled", "broken"), ("from_the_future", "incompatible"), ("missing_module", "broken")):
        (row,) = [line for line in lines if line.startswith(name)]
        assert status in row.split()
    assert "→ Did you mean 'toolrl_tools'?" in text
    assert "needs toolrl >=9" in text
    assert "→ pip install no_such_module_xyz" in text
    assert len([line for line in lines if line.startswith("twin")]) == 2
    assert "Traceback" not in text


def test_verbose_shows_a_summary_for_each_component(full_site: Any) -> None:
    lines = full_site.run("list-plugins", "-v").stdout.splitlines()
    assert any(line.split() == ["tools", "counter", "The", "counter."] for line in lines)


def test_json(full_site: Any) -> None:
    done = full_site.run("list-plugins", "--json", env={"TOOLRL_DISABLE": "good"})
    plugins = {plugin["name"]: plugin for plugin in json.loads(done.stdout)["plugins"]}
    assert plugins["full"] == {
        "name": "full",
        "distribution": "toolrl-plugin-full",
        "version": "1.0",
        "status": "ok",
        "components": {
            "parsers": ["tags"],
            "chat_formats": ["roles"],
            "tools": ["counter"],
            "engines": ["dice"],
            "commands": ["count"],
        },
        "clashes": [],
        "reason": None,
        "next": None,
    }
    assert plugins["good"]["status"] == "disabled"
    assert plugins["good"]["components"] == {}
    assert plugins["raising"]["reason"] == "RuntimeError: boom at import"
    assert plugins["raising"]["next"].startswith("toolrl doctor raising")
