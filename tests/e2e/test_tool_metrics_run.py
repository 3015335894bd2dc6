"""What a run's metrics hold of its tools: policies, and servers that were started anew."""

from __future__ import annotations

from typing import Any

PLUGIN = {
    "plugin": """
        from toolrl import Component, hookimpl
        from toolrl.tools import tool

        @hookimpl
        def toolrl_tools():
            yield Component("fragile", "toolrl_plugin_fragile.plugin:build", summary="Its server dies twice.")

        def build(options, context):
            calls = []

            @tool(name="calculator", pure=True)
            def calculator(expression: str) -> str:
                \"\"\"Evaluates an expression.\"\"\"
                calls.append(expression)
                if len(calls) in (1, 2):
                    context.restarted()
                return "5"

            return calculator
    """
}
POLICY = {
    "concurrency": 2,
    "rate": {"per_second": 1000, "burst": 50},
    "breaker": {},
    "retry": {},
    "cache": 100,
    "max_calls_per_episode": 2,
}


def test_policies_and_restarts_are_in_the_metrics(workplace: Any, own_place: Any) -> None:
    site = workplace.site("fragile")
    site.add("fragile", PLUGIN)
    environment = {"tools": [{"use": "fragile", "policy": POLICY}], "rewards": ["exact"], "max_turns": 2}
    changes = {
        "model": {"path": "runs/warm"},
        "data": {"eval": None},
        "environments": {"default": environment},
        "trainer": {"steps": 2, "save_every": 0},
    }
    first, second = own_place.train(changes, site=site).metrics_lines("train")
    assert first.metrics["cluster/restarted_servers"] == 2.0
    assert not any(name.startswith("cluster/") for name in second.metrics)
    policy = {name.rpartition("/")[2] for name in first.metrics if name.startswith("tool/calculator/policy/")}
    assert policy == {"retries", "queue_seconds", "cache_hits"}
