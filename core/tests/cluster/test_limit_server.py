"""The limits of a cluster without the cluster: tickets, leases, restarts, specs that differ."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.cluster.limit_server import LimitServer, Roll
from toolrl.tools.rate_limits import LimitSpec
from toolrl_testing.clock import run_in_virtual_time

ONE = LimitSpec(concurrency=1, lease=10)
TWO = LimitSpec(concurrency=2, lease=10)


def in_time(main: Any) -> Any:
    async def run() -> Any:
        server = LimitServer()
        try:
            return await main(server)
        finally:
            if server._watch is not None:
                server._watch.cancel()

    return run_in_virtual_time(run())


async def join(server: LimitServer, client: str, spec: LimitSpec = ONE, **more: Any) -> Any:
    return await server.hello(client, {"x": spec}, more.get("held", {}), more.get("waiting", {}))


def want(*tickets: str) -> list[tuple[str, str, str]]:
    return [("want", ticket, "x") for ticket in tickets]


def drop(*tickets: str) -> list[tuple[str, str, str]]:
    return [("drop", ticket, "") for ticket in tickets]


def test_permits_go_round_in_the_order_in_which_they_were_asked_for() -> None:
    async def main(server: LimitServer) -> None:
        await join(server, "a")
        await join(server, "b")
        assert await server.update("a", want("a1", "a2")) == ["a1"]
        assert await server.update("b", want("b1")) == []
        assert await server.update("a", want("a3")) == []
        assert await server.update("a", drop("a1")) == ["a2"]
        assert await server.update("a", drop("a2")) == []
        assert await server.poll("b", 1) == ["b1"]
        assert (await server.state())["x"] == {"users": 2, "held": 1, "waiting": 1}

    in_time(main)


def test_a_poll_lasts_until_there_is_something_to_say() -> None:
    async def main(server: LimitServer) -> None:
        clock = asyncio.get_running_loop().time
        await join(server, "a")
        await join(server, "b")
        await server.update("a", want("a1"))
        await server.update("b", want("b1"))
        poll = asyncio.create_task(server.poll("b", 5))
        await asyncio.sleep(3)
        await server.update("a", drop("a1"))
        assert (await poll, clock()) == (["b1"], pytest.approx(3))
        assert (await server.poll("b", 2), clock()) == ([], pytest.approx(5))

    in_time(main)


def test_saying_something_twice_does_no_harm() -> None:
    async def main(server: LimitServer) -> None:
        await join(server, "a", TWO)
        assert await server.update("a", want("a1", "a1")) == ["a1"]
        assert await server.update("a", [*want("a1", "a2"), *drop("nobody", "a1", "a1")]) == ["a2"]
        assert await server.update("a", want("a3", "a4")) == ["a3"]
        assert (await server.state())["x"] == {"users": 1, "held": 2, "waiting": 1}

    in_time(main)


def test_a_permit_of_a_dead_client_is_back_within_the_lease() -> None:
    async def main(server: LimitServer) -> float:
        clock = asyncio.get_running_loop().time
        await join(server, "dead")
        await join(server, "alive")
        await server.update("dead", want("d1", "d2"))
        await server.update("alive", want("a1"))
        while not await server.poll("alive", 2.5):
            pass
        assert await server.update("dead", []) is None
        assert (await server.state())["x"] == {"users": 1, "held": 1, "waiting": 0}
        return float(clock())

    assert 8 <= in_time(main) <= 10


def test_who_is_heard_of_keeps_his_permit() -> None:
    async def main(server: LimitServer) -> None:
        await join(server, "a")
        await server.update("a", want("a1"))
        for _ in range(100):
            assert await server.poll("a", 2.5) == []
        assert (await server.state())["x"]["held"] == 1

    in_time(main)


def test_limits_that_differ_are_refused_while_somebody_uses_them() -> None:
    async def main(server: LimitServer) -> None:
        await join(server, "a")
        welcome = await join(server, "b", TWO)
        assert welcome.refused == {"x": ONE}
        await server.goodbye("b")
        assert (await join(server, "a", TWO)).refused == {}  # Its only user may change its mind.
        await server.goodbye("a")
        assert (await join(server, "c", ONE)).refused == {}
        assert server.clients == 1
        await asyncio.sleep(60)  # It dies without a goodbye.
        assert (await join(server, "d", TWO)).refused == {}
        assert await server.state() == {"x": {"users": 1, "held": 0, "waiting": 0}}

    in_time(main)


def test_polls_end_with_the_goodbye() -> None:
    async def main(server: LimitServer) -> None:
        await join(server, "a", LimitSpec(concurrency=1, lease=3600))
        polls = [asyncio.create_task(server.poll("a", 900)) for _ in range(2)]
        await asyncio.sleep(1)
        await server.goodbye("a")
        await asyncio.wait(polls, timeout=1)
        assert [poll.done() and poll.result() for poll in polls] == [[], []]

    in_time(main)


def test_a_server_whose_last_client_died_is_told_of_it_when_nobody_is_on_the_roll() -> None:
    class Lonely(LimitServer):
        left: tuple[Roll, ...] = ()

        def nobody_left(self) -> None:
            self.left = (*self.left, dict(self._written))

    async def main(_: LimitServer) -> None:
        server = Lonely()
        await join(server, "a", waiting={"a1": "x"})
        await join(server, "b", waiting={"b1": "x"})
        await asyncio.sleep(5)
        await server.poll("b", 1)
        await asyncio.sleep(5)
        assert (server.clients, server.left) == (1, ()), "one of them lives"
        await asyncio.sleep(60)
        assert (server.clients, server.left) == (0, ({},)), "once"
        assert server._watch is not None
        server._watch.cancel()

    in_time(main)


def test_a_new_server_grants_nothing_until_all_that_live_have_said_what_they_hold() -> None:
    async def main(_: LimitServer) -> None:
        server, clock = LimitServer(recovering=True), asyncio.get_running_loop().time
        welcome = await join(server, "new", TWO, waiting={"n1": "x", "n2": "x"})
        assert welcome.granted == ()
        await asyncio.sleep(4)
        welcome = await join(server, "old", TWO, held={"o1": "x", "o2": "x"}, waiting={"o3": "x"})
        assert welcome.lost == ()
        assert [await server.poll("new", 2) for _ in range(3)] == [[], [], []]
        await server.update("old", drop("o1"))
        assert await server.poll("new", 2) == ["n1"]
        assert clock() == pytest.approx(10)
        welcome = await join(server, "late", TWO, held={"l1": "x"})
        assert welcome.lost == ("l1",)
        await join(server, "other", LimitSpec(concurrency=1, lease=3))
        assert await server.hello("other", {"y": ONE}, {}, {"y1": "y"}) is not None
        assert (await server.state())["y"]["held"] == 1  # Nobody can hold what is new now.
        assert server._watch is not None
        server._watch.cancel()

    in_time(main)


class Store:
    """A roll that outlives servers."""

    def __init__(self) -> None:
        self.roll: Roll = {}
        self.broken = False

    async def read(self) -> Roll:
        await asyncio.sleep(0.01)
        return self.roll

    async def write(self, roll: Roll) -> None:
        await asyncio.sleep(0.01)
        if self.broken:
            raise OSError("the store is gone")
        self.roll = {name: tuple(users) for name, users in roll.items()}


def end(*servers: LimitServer) -> None:
    for server in servers:
        if server._watch is not None:
            server._watch.cancel()
        for client in server._clients.values():
            for claim in client.claims.values():
                if claim.waiting is not None:
                    claim.waiting.cancel()


def test_a_new_server_goes_on_as_soon_as_all_that_the_old_one_served_are_back() -> None:
    async def main(_: LimitServer) -> None:
        store, clock = Store(), asyncio.get_running_loop().time
        first = LimitServer(keeper=store)
        for name in ("a", "b", "gone"):
            await join(first, name, TWO)
        await first.update("a", want("a1", "a2"))
        await first.goodbye("gone")
        assert store.roll == {"x": ("a", "b")}
        end(first)
        second, began = LimitServer(recovering=True, keeper=store), clock()
        assert (await join(second, "new", TWO, waiting={"n1": "x", "n2": "x"})).granted == ()
        assert (await join(second, "a", TWO, held={"a1": "x"})).lost == ()
        assert await second.poll("new", 0.1) == []
        assert store.roll == {"x": ("a", "b", "new")}, "another one after this has to wait for b, too"
        welcome = await join(second, "b", TWO, waiting={"b1": "x"})
        assert await second.poll("new", 1) == ["n1"], "the one permit that a doesn't hold"
        assert (welcome.granted, clock() - began < 1) == ((), True)
        end(second)

    in_time(main)


def test_who_died_with_the_server_is_waited_for_no_longer_than_a_lease() -> None:
    async def main(_: LimitServer) -> None:
        store, clock = Store(), asyncio.get_running_loop().time
        store.roll = {"x": ("a", "dead")}
        server, began = LimitServer(recovering=True, keeper=store), clock()
        await join(server, "a", ONE, waiting={"a1": "x"})
        while not await server.poll("a", 2):
            pass
        assert clock() - began == pytest.approx(10, abs=0.1)
        await asyncio.sleep(2)
        assert store.roll == {"x": ("a",)}
        end(server)

    in_time(main)


def test_who_says_goodbye_to_a_new_server_is_waited_for_no_longer() -> None:
    async def main(_: LimitServer) -> None:
        store = Store()
        store.roll = {"x": ("a", "b")}
        server = LimitServer(recovering=True, keeper=store)
        await join(server, "a", ONE, waiting={"a1": "x"})
        await server.goodbye("b")
        assert await server.poll("a", 1) == ["a1"]
        end(server)

    in_time(main)


def test_nobody_is_served_who_could_not_be_written_down() -> None:
    async def main(server: LimitServer) -> None:
        server._keeper = store = Store()
        store.broken = True
        with pytest.raises(OSError, match="the store is gone"):
            await join(server, "a", ONE, waiting={"a1": "x"})
        assert await server.poll("a", 1) == []
        store.broken = False
        assert (await join(server, "a", ONE, waiting={"a1": "x"})).granted == ("a1",)
        store.broken = True
        await server.goodbye("a")
        assert server.clients == 0

    in_time(main)


def test_what_a_client_sends_while_its_hello_is_written_down_comes_after_it() -> None:
    async def main(server: LimitServer) -> None:
        server._keeper = Store()
        await join(server, "a", TWO)
        assert await server.update("a", want("a1")) == ["a1"]
        both = {"x": TWO, "y": ONE}
        hello = asyncio.create_task(server.hello("a", both, {"a1": "x"}, {}))
        await asyncio.sleep(0)  # On its way to the store.
        news = await asyncio.gather(server.update("a", want("a2")), server.update("a", drop("a1")))
        assert (await hello).lost == ()
        assert news[0] == ["a2"]
        assert list(server._clients["a"].claims) == ["a2"]
        assert (await server.state())["x"] == {"users": 1, "held": 1, "waiting": 0}

    in_time(main)


def test_a_hello_says_everything_anew() -> None:
    async def main(server: LimitServer) -> None:
        await join(server, "a", TWO)
        await server.update("a", want("a1", "a2", "a3", "a4"))
        # The answer got lost: the client holds nothing yet, and has given a1 and a4 up.
        welcome = await join(server, "a", TWO, waiting={"a2": "x", "a3": "x"})
        assert sorted(welcome.granted) == ["a2", "a3"]
        assert (await server.state())["x"] == {"users": 1, "held": 2, "waiting": 0}
        welcome = await join(server, "a", TWO, held={"a2": "x", "a3": "x"})
        assert (welcome.granted, welcome.lost) == ((), ())
        assert (await server.hello("a", {}, {"z1": "z"}, {})).lost == ("z1",)

    in_time(main)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), permits=st.integers(1, 3))
def test_whatever_clients_do_the_limit_is_kept_and_everybody_is_served(seed: int, permits: int) -> None:
    """Clients want, hold, give up, die and come back; the truth is what the living were told."""
    spec, chance = LimitSpec(concurrency=permits, lease=10), random.Random(seed)
    inside: set[str] = set()
    served: list[str] = []

    async def client(server: LimitServer, name: str) -> None:
        await join(server, name, spec)
        dies = chance.random() < 0.3
        for number in range(4):
            ticket = f"{name}{number}"
            got = await server.update(name, want(ticket))
            gives_up = chance.random() < 0.2
            while got is not None and ticket not in got and not gives_up:
                got = await server.poll(name, 2.5)
            assert got is not None
            if ticket in got:
                inside.add(ticket)
                assert len(inside) <= permits
                served.append(ticket)
                if dies and number == 2:
                    await asyncio.sleep(5.4)  # Its last poll began up to 2.5 s ago, and 8 s of silence are allowed.
                    inside.discard(ticket)
                    return
                await asyncio.sleep(chance.random() * 2)
                inside.discard(ticket)
            await server.update(name, drop(ticket))
        await server.goodbye(name)

    async def main(server: LimitServer) -> None:
        await asyncio.gather(*(client(server, f"c{n}.") for n in range(5)))
        await asyncio.sleep(20)
        assert await server.state() == {}

    in_time(main)
    assert served


def test_who_is_refused_has_no_part_in_the_others_limits() -> None:
    async def main(server: LimitServer) -> None:
        await join(server, "a", TWO)
        welcome = await join(server, "b", ONE, held={"b1": "x"}, waiting={"b2": "x"})
        assert (welcome.refused, welcome.granted, welcome.lost) == ({"x": TWO}, (), ("b1",))
        assert await server.update("b", want("b3")) is None
        assert await server.update("b", [("want", "b4", "unheard of")]) is None
        assert (await server.state())["x"] == {"users": 1, "held": 0, "waiting": 0}
        await server.goodbye("a")
        await asyncio.sleep(60)  # The dead are found all the same.
        assert server.clients == 0

    in_time(main)
