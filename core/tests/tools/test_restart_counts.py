"""What was started anew is counted once, however often and by however many processes it is reported."""

from __future__ import annotations

from toolrl.tools.restart_counts import RestartCounts


def test_what_several_processes_saw_counts_once_and_what_each_saw_counts_each() -> None:
    one, other, count = RestartCounts(), RestartCounts(), RestartCounts()
    for process in (one, other):
        process.add_limits("second life")
        process.add_server()
        count.merge(process.all())
        count.merge(process.all())
    assert count.metrics() == {"cluster/restarted_limits": 1.0, "cluster/restarted_servers": 2.0}
    assert count.metrics() == {}
    one.add_server()
    count.merge([list(it) for it in one.all()])  # As it comes from JSON.
    assert count.metrics() == {"cluster/restarted_servers": 1.0}
    assert count.totals() == {"limits": 1, "servers": 3}
