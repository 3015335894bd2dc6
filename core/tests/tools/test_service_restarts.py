"""What was started anew is counted once, whoever tells it and how often."""

from __future__ import annotations

from toolrl.tools.service_restarts import ServiceRestarts


def test_what_several_processes_saw_counts_once_and_what_each_saw_counts_each() -> None:
    one, other, count = ServiceRestarts(), ServiceRestarts(), ServiceRestarts()
    for process in (one, other):
        process.limits("second life")
        process.server()
        count.hear(process.told())
        count.hear(process.told())
    assert count.metrics() == {"cluster/restarted_limits": 1.0, "cluster/restarted_servers": 2.0}
    assert count.metrics() == {}
    one.server()
    count.hear([list(it) for it in one.told()])  # As it comes from JSON.
    assert count.metrics() == {"cluster/restarted_servers": 1.0}
    assert count.totals() == {"limits": 1, "servers": 3}
