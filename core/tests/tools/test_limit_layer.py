"""The layer that waits for one's turn: what holds a permit and for how long, who shares a limit, what a wait costs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ConfigError
from toolrl.tools import Tool, TransientToolError, as_toolset
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.rate_limits import Limiter, LimitSpec, LocalLimiter
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.tools.traits import ToolTraits
from toolrl.types import ToolCall, ToolSpec
from toolrl_testing.fakes import make_build_context, make_episode_context, make_task


class Busy:
    """A server that counts who is inside."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.inside = 0
        self.most = 0

    async def __call__(self, call: ToolCall) -> str:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.inside -= 1
        return "ok"


@pytest.mark.virtual_time
async def test_no_more_calls_at_once_than_the_limit_and_waiting_is_not_the_calls_time(scene: Any) -> None:
    server = Busy()
    search = scene(server, {"concurrency": 3, "timeout": 2})
    records = await asyncio.gather(*(search.ask(str(n)) for n in range(30)))
    assert {record.result.error for record in records} == {None}
    waited = sorted(record.result.metrics["policy/queue_seconds"] for record in records)
    assert waited == pytest.approx([n // 3 for n in range(30)])
    assert asyncio.get_running_loop().time() == pytest.approx(10)
    assert server.most == 3


@pytest.mark.virtual_time
async def test_a_rate_spaces_the_beginnings(scene: Any) -> None:
    search = scene(Busy(100.0), {"rate": {"per_second": 2}, "timeout": 200})
    await asyncio.gather(*(search.ask(str(n)) for n in range(5)))
    assert search.begun == pytest.approx([0, 0.5, 1, 1.5, 2])


@pytest.mark.virtual_time
async def test_a_call_that_waits_too_long_is_answered(scene: Any) -> None:
    search = scene(Busy(10.0), {"concurrency": 1, "queue_timeout": 15})
    records = await asyncio.gather(*(search.ask(str(n)) for n in range(3)))
    assert [record.result.error for record in records] == [None, None, "limit"]
    assert records[2].result.text == (
        "The tool 'search' is busy: there was no place for this call within 15 s, and it didn't run. Go on without "
        "it, or try again later."
    )
    assert (await search.ask()).result.error is None
    assert len(search.begun) == 3


@pytest.mark.virtual_time
async def test_no_permit_is_held_between_retries(scene: Any) -> None:
    times: list[tuple[Any, float]] = []

    async def respond(call: ToolCall) -> str:
        times.append((call.arguments["who"], asyncio.get_running_loop().time()))
        if len(times) == 1:
            raise TransientToolError("busy", retry_after=100)
        await asyncio.sleep(1)
        return "ok"

    search = scene(respond, {"concurrency": 1, "retry": {"jitter": 0, "max_seconds": 1000}})
    await asyncio.gather(search.ask("a", who="a"), search.ask("b", who="b"))
    assert [(who, round(at)) for who, at in times] == [("a", 0), ("b", 0), ("a", 100)]


@pytest.mark.virtual_time
async def test_calls_that_share_a_limit(scene: Any) -> None:
    endpoints, server = Endpoints(), Busy()

    def tool_of(entry: str, policy: dict[str, Any], endpoint: str | None = None) -> Any:
        return scene(
            server, {"concurrency": 2, **policy}, entry=entry, traits=ToolTraits(endpoint=endpoint), endpoints=endpoints
        )

    async def together(*tools: Any) -> int:
        server.most = 0
        await asyncio.gather(*(it.ask(str(n)) for n in range(6) for it in tools))
        return server.most

    assert await together(tool_of("search", {}), tool_of("search", {})) == 2
    assert await together(tool_of("search", {}), tool_of("fetch", {})) == 4
    assert await together(tool_of("search", {}, "http://x"), tool_of("fetch", {}, "http://x")) == 2
    assert await together(tool_of("search", {"limit_name": "n"}), tool_of("fetch", {"limit_name": "n"}, "u")) == 2


@pytest.mark.virtual_time
async def test_two_limits_under_one_name_are_an_error(scene: Any) -> None:
    endpoints = Endpoints()

    def use(**policy: Any) -> Any:
        return scene(Busy(), {"limit_name": "sandbox", **policy}, entry="b", endpoints=endpoints)

    await use(concurrency=8).ask()
    await use(concurrency=8).ask()
    for other, shown in (
        ({"concurrency": 16}, "concurrency 16 and lease 30 s"),
        (
            {"concurrency": 8, "rate": {"per_second": 2}},
            "concurrency 8, rate 2 per second with burst 1 and lease 30 s",
        ),
        ({"concurrency": 8, "limit_lease": 5}, "concurrency 8 and lease 5 s"),
    ):
        with pytest.raises(ConfigError) as caught:
            await use(**other).ask()
        assert caught.value.problems == [
            f"the limit 'sandbox' is in use with concurrency 8 and lease 30 s, and another tool asks for {shown}"
        ]


class Cluster:
    """Limits of a cluster that is this process."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, LimitSpec]] = []
        self.closed = 0

    async def get(self, name: str, spec: LimitSpec) -> Limiter:
        self.asked.append((name, spec))
        return LocalLimiter(spec)

    async def close(self) -> None:
        self.closed += 1


def test_a_cluster_needs_to_be_handed_in_and_is_left_in_the_end(scene: Any, virtual: Any) -> None:
    policy = {"concurrency": 2, "limit_scope": "cluster"}
    with pytest.raises(ConfigError, match="needs limits that a cluster shares, and none were handed in"):
        virtual(scene(Busy(), policy).ask())
    cluster = Cluster()
    endpoints = Endpoints(lambda: cluster)

    async def main() -> None:
        search = scene(Busy(), policy, endpoints=endpoints)
        for _ in range(2):
            await search.ask()
        await endpoints.close()
        await endpoints.close()

    virtual(main())
    assert cluster.asked == [("engine", LimitSpec(concurrency=2))]
    assert cluster.closed == 1


# What can't be stopped.


@pytest.mark.parametrize("ends", [True, False])
async def test_a_thread_that_runs_on_keeps_its_permit_until_it_ends_or_the_lease_does(ends: bool) -> None:
    leave = threading.Event()
    inside = [0, 0]

    class Blocking(Tool):
        spec = ToolSpec("search", "")

        def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> str:
            inside[0] += 1
            inside[1] = max(inside)
            if inside[0] == 1:
                leave.wait(30)
            inside[0] -= 1
            return "ok"

        def release(self, instance_id: str) -> None:
            leave.set()

    toolset = as_toolset(Blocking, None, make_build_context())
    policy = PolicyOptions(timeout=0.1, concurrency=1, limit_lease=30.0 if ends else 0.3)
    box = ToolBox([ToolEntry("search", toolset, policy=policy)])
    async with box.open(make_task(), make_episode_context()) as session:
        (first,) = await session.answer([ToolCall("search", {})])
        assert first.result.error == "timeout"
        second = asyncio.create_task(session.answer([ToolCall("search", {})]))
        await asyncio.sleep(0.05)
        assert inside == [1, 1]  # The endpoint is still busy with the first call.
        if ends:
            leave.set()
        assert (await second)[0].result.error is None
        assert inside[1] == (1 if ends else 2)
        leave.set()
