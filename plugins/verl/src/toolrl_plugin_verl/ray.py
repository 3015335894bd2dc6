"""A stand-in for the little of Ray that verl's tools use, in one process: `from toolrl_plugin_verl import ray`.

    @ray.remote(concurrency_groups={"acquire": 1, "release": 10})
    class Worker: …

    worker = Worker.options(name="limiter", get_if_exists=True, max_concurrency=8).remote(10)
    ray.get(worker.acquire.remote())      # or: await worker.acquire.remote()

Actors are objects of this process; their methods run in threads, `max_concurrency` of them at once, those of a
concurrency group in threads of its own. Named actors are found again by their name. Where a tool is to share an
actor with other processes, install Ray and import it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from toolrl_plugin_verl.pool import DaemonPool

__path__: list[str] = []
"""So that `import ray.actor` finds this module again."""
_GROUP = "__ray_concurrency_group__"


class ObjectRef:
    """What a remote call will give. Can be awaited, or got by `ray.get`."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio

        return asyncio.wrap_future(self.future).__await__()


class _Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self._actor = actor
        self._name = name

    def remote(self, *args: Any, **kwargs: Any) -> ObjectRef:
        """Begin the call."""
        return self._actor._submit(self._name, args, kwargs)


class Actor:
    """An object whose methods run in threads."""

    def __init__(self, target: Any, threads: int, groups: Mapping[str, int]) -> None:
        self._target = target
        name = type(target).__name__
        self._pools = {
            group: DaemonPool(size, f"{name} {group}".strip()) for group, size in {"": threads, **groups}.items()
        }

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("__") or not callable(getattr(self._target, name, None)):
            raise AttributeError(f"the actor {type(self._target).__name__} has no method {name!r}")
        return _Method(self, name)

    def _submit(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ObjectRef:
        method = getattr(self._target, name)
        pool = self._pools.get(getattr(method, _GROUP, ""), self._pools[""])
        return ObjectRef(pool.submit(method, *args, **kwargs))


class ActorClass:
    """A class whose objects are actors."""

    def __init__(self, cls: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        self._cls = cls
        self._settings = dict(settings)

    def options(self, **settings: Any) -> ActorClass:
        """The same class with other settings."""
        return ActorClass(self._cls, {**self._settings, **settings})

    def remote(self, *args: Any, **kwargs: Any) -> Actor:
        """Make an actor, or find that of the name."""
        name = self._settings.get("name")
        if name is None:
            return self._made(args, kwargs)
        with _lock:
            if name in _named:
                if not self._settings.get("get_if_exists"):
                    raise ValueError(f"there is an actor {name!r} already; use get_if_exists=True")
                return _named[name]
            actor = _named[name] = self._made(args, kwargs)
            return actor

    def _made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Actor:
        threads = int(self._settings.get("max_concurrency") or 1)
        return Actor(self._cls(*args, **kwargs), threads, self._settings.get("concurrency_groups") or {})


class _RemoteFunction:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__name__ = getattr(function, "__name__", "function")

    def options(self, **settings: Any) -> _RemoteFunction:
        return self

    def remote(self, *args: Any, **kwargs: Any) -> ObjectRef:
        return ObjectRef(_functions.submit(self._function, *args, **kwargs))


_lock = threading.Lock()
_named: dict[str, Actor] = {}
_functions = DaemonPool(32, "ray function")


def remote(target: Any = None, /, **settings: Any) -> Any:
    """Decorator of a class or a function, bare or with settings."""
    if target is None:
        return functools.partial(remote, **settings)
    return ActorClass(target, settings) if isinstance(target, type) else _RemoteFunction(target)


def method(*, concurrency_group: str = "", **settings: Any) -> Callable[[Any], Any]:
    """Decorator of an actor's method: the group whose threads run it."""

    def mark(function: Any) -> Any:
        setattr(function, _GROUP, concurrency_group)
        return function

    return mark


def get(refs: Any, *, timeout: float | None = None) -> Any:
    """What a call gave, or a list of them. Blocks."""
    if isinstance(refs, Sequence):
        return [ref.future.result(timeout) for ref in refs]
    return refs.future.result(timeout)


def get_actor(name: str, namespace: str | None = None) -> Actor:
    """A named actor. Raises ValueError where there is none."""
    with _lock:
        if name in _named:
            return _named[name]
    raise ValueError(f"there is no actor {name!r}")


def init(*args: Any, **kwargs: Any) -> None:
    """Nothing to do: everything is in this process."""


def is_initialized() -> bool:
    """Always."""
    return True


def kill(actor: Actor, *, no_restart: bool = True) -> None:
    """End an actor's threads; a named one is forgotten."""
    with _lock:
        for name in [name for name, known in _named.items() if known is actor]:
            del _named[name]
    for pool in actor._pools.values():
        pool.close()
