"""What a run's tools lean on and was started anew is in its metrics."""

from __future__ import annotations

from typing import Any

PLUGIN = {
    "plugin": """
        from toolrl import Component, hookimpl
        from toolrl.tools import tool

        @hookimpl
        def toolrl_tools():
            yield Component("fragile", "toolrl_plugin_fragile.plugin:build", summary="Its server dies now and then.")

        def build(options, context):
            calls = []

            @tool(name="calculator")
            def calculator(expression: str) -> str:
                \"\"\"Evaluates an expression.\"\"\"
                calls.append(expression)
                if len(calls) in (1, 2):
                    context.restarted()
                return "5"

            return calculator
    """
}


def test_restarted_servers_are_counted_in_a_run_of_one_process(workplace: Any, own_place: Any) -> None:
    site = workplace.site("fragile")
    site.add("fragile", PLUGIN)
    environment = {"tools": ["fragile"], "rewards": ["exact"], "max_turns": 2}
    changes = {
        "model": {"path": "runs/warm"},
        "run": {"name": "fragile"},
        "data": {"eval": None},
        "environments": {"default": environment},
        "trainer": {"steps": 2, "save_every": 0},
    }
    done = own_place.toolrl("train", own_place.config(changes, name="fragile"), "--json", site=site)
    assert done.returncode == 0, done.stderr
    first, second = own_place.run("fragile").metrics_lines("train")
    assert first.metrics["cluster/restarted_servers"] == 2.0
    assert "cluster/restarted_servers" not in second.metrics
    assert not any(name.startswith("cluster/") for name in second.metrics)
