"""The stand-in for Ray, and the threads under it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from toolrl_plugin_verl import ray


@ray.remote
class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, number: int = 1) -> int:
        self.value += number
        return self.value

    def fail(self) -> None:
        raise KeyError("no")


@ray.remote(num_cpus=1)
def double(number: int) -> int:
    return 2 * number


def test_actors_and_functions() -> None:
    counter = Counter.remote(5)
    assert ray.get([counter.add.remote(), counter.add.remote(number=4)]) == [6, 10]
    assert ray.get(double.remote(21)) == 42
    assert ray.get(double.options(num_cpus=2).remote(1), timeout=30) == 2
    with pytest.raises(KeyError):
        ray.get(counter.fail.remote())
    with pytest.raises(AttributeError, match="the actor Counter has no method 'missing'"):
        counter.missing.remote()

    async def awaited() -> int:
        return await counter.add.remote()

    assert asyncio.run(awaited()) == 11


def test_named_actors_are_found_again() -> None:
    first = Counter.options(name="test-counter").remote()
    assert Counter.options(name="test-counter", get_if_exists=True).remote(100) is first
    with pytest.raises(ValueError, match="there is an actor 'test-counter' already"):
        Counter.options(name="test-counter").remote()


def test_a_group_that_waits_does_not_hold_up_another() -> None:
    @ray.remote(concurrency_groups={"wait": 1, "free": 1})
    class Gate:
        def __init__(self) -> None:
            self.open = threading.Event()

        @ray.method(concurrency_group="wait")
        def wait(self) -> str:
            self.open.wait()
            return "through"

        @ray.method(concurrency_group="free")
        def free(self) -> None:
            self.open.set()

    gate = Gate.remote()
    waiting = [gate.wait.remote() for _ in range(3)]
    gate.free.remote()
    assert ray.get(waiting) == ["through"] * 3
