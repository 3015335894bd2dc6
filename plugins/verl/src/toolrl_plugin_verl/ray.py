"""A stand-in for the little of Ray that verl's tools use, in one process: `from toolrl_plugin_verl import ray`.

    @ray.remote(concurrency_groups={"acquire": 1, "release": 10})
    class Worker: …

    worker = Worker.options(name="limiter", get_if_exists=True, max_concurrency=8).remote(10)
    ray.get(worker.acquire.remote())      # or: await worker.acquire.remote()

Actors are objects of this process; their methods run in threads, `max_concurrency` of them at once, those of a
concurrency group in threads of its own. Named actors are found again by `get_if_exists`. Where a tool needs more of
Ray, or is to share an actor with other processes, install Ray: an installed one is imported instead.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

__path__: list[str] = []
"""So that `import ray.actor` finds this module again."""
_GROUP = "__ray_concurrency_group__"


class ObjectRef(Future[Any]):
    """What a remote call will give. Can be awaited, or got by `ray.get`."""

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()


class DaemonPool:
    """At most `size` daemon threads; unlike those of `concurrent.futures` they never hold up an exit."""

    def __init__(self, size: int, name: str) -> None:
        self._missing, self._name = max(1, size), name
        self._jobs: queue.SimpleQueue[tuple[ObjectRef, Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ObjectRef:
        """What the function gives, or raises."""
        ref = ObjectRef()
        self._jobs.put((ref, functools.partial(function, *args, **kwargs)))
        with self._lock:
            if self._missing:
                self._missing -= 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return ref

    def _work(self) -> None:
        while True:
            ref, call = self._jobs.get()
            if ref.set_running_or_notify_cancel():
                try:
                    ref.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it is the caller's
                    ref.set_exception(error)
            del ref, call  # An idle thread keeps nothing alive.


class _Remote:
    """A function, or an actor's method, whose calls run in a pool's threads."""

    def __init__(self, pool: DaemonPool, function: Callable[..., Any]) -> None:
        self.remote = functools.partial(pool.submit, function)

    def options(self, **settings: Any) -> _Remote:
        return self


class Actor:
    """An object whose methods run in threads."""

    def __init__(self, target: Any, groups: Mapping[str, int]) -> None:
        self._target = target
        self._pools = {group: DaemonPool(size, f"{type(target).__name__} {group}") for group, size in groups.items()}

    def __getattr__(self, name: str) -> _Remote:
        method = None if name.startswith("__") else getattr(self._target, name, None)
        if not callable(method):
            raise AttributeError(f"the actor {type(self._target).__name__} has no method {name!r}")
        return _Remote(self._pools.get(getattr(method, _GROUP, ""), self._pools[""]), method)


class ActorClass:
    """A class whose objects are actors."""

    def __init__(self, cls: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        self._cls, self._settings = cls, settings

    def options(self, **settings: Any) -> ActorClass:
        """The same class with other settings."""
        return ActorClass(self._cls, {**self._settings, **settings})

    def remote(self, *args: Any, **kwargs: Any) -> Actor:
        """Make an actor, or find that of the name."""
        settings, name = self._settings, self._settings.get("name")
        with _lock:
            if name in _named and not settings.get("get_if_exists"):
                raise ValueError(f"there is an actor {name!r} already; use get_if_exists=True")
            if name in _named:
                return _named[name]
            groups = {"": settings.get("max_concurrency") or 1, **(settings.get("concurrency_groups") or {})}
            actor = Actor(self._cls(*args, **kwargs), groups)
            if name is not None:
                _named[name] = actor
            return actor


_lock = threading.RLock()
_named: dict[str, Actor] = {}
_functions = DaemonPool(32, "ray function")


def remote(target: Any = None, /, **settings: Any) -> Any:
    """Decorator of a class or a function, bare or with settings."""
    if target is None:
        return functools.partial(remote, **settings)
    return ActorClass(target, settings) if isinstance(target, type) else _Remote(_functions, target)


def method(*, concurrency_group: str = "", **settings: Any) -> Callable[[Any], Any]:
    """Decorator of an actor's method: the group whose threads run it."""

    def mark(function: Any) -> Any:
        setattr(function, _GROUP, concurrency_group)
        return function

    return mark


def get(refs: Any, *, timeout: float | None = None) -> Any:
    """What a call gave, or a list of them. Blocks."""
    return [ref.result(timeout) for ref in refs] if isinstance(refs, Sequence) else refs.result(timeout)


def init(*args: Any, **kwargs: Any) -> None:
    """Nothing to do: everything is in this process."""


def is_initialized() -> bool:
    """Always."""
    return True
