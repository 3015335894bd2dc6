"""What runs in the worker processes of reasoning_gym.

The library is imported here and nowhere else: it brings much along, some of its generators are functions of their seed
only where the order of sets (the parent sets PYTHONHASHSEED) and the global random numbers are fixed, and some of its
scorers evaluate the model's text. Each answer is scored in a fork of its own, which is walled in and ends with it, so
that no answer reaches the next one.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import math
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NoReturn

from toolrl_plugin_reasoning_gym.values import pack, unpack

Reply = dict[str, Any]
_REPLY_BYTES = 1 << 16
"""A score and a line of text need far less."""
_OUT_OF_TIME = (signal.SIGXCPU, signal.SIGALRM)


def build(*arguments: str) -> Callable[[dict[str, Any]], Reply]:
    """Answers a request by the function that its `do` names."""
    sys.dont_write_bytecode = True
    importlib.import_module("reasoning_gym")
    if "--score" in arguments:
        if not hasattr(os, "fork"):
            raise OSError("answers are scored on Linux and macOS only: this system has no fork")
        from toolrl_plugin_reasoning_gym import guard

        guard.close_evals()
        for module in ("landlock", "seccomp"):  # else every fork would import them anew
            with contextlib.suppress(ImportError):
                importlib.import_module(f"toolrl_plugin_python.jail.{module}")
        gc.freeze()
    serve: dict[str, Callable[..., Reply]] = {"list": listing, "opened": opened, "entry": entry, "score": score}
    serve["walls"] = walls
    return lambda request: serve[request.pop("do")](**request)


def _registered() -> dict[str, tuple[Any, Any]]:
    datasets = importlib.import_module("reasoning_gym.factory").DATASETS
    return {name: found for name, found in datasets.items() if name != "composite"}


@functools.lru_cache(maxsize=256)
def _dataset(generator: str, config: str) -> Any:
    """The generator with this configuration, given as JSON."""
    if generator not in _registered():
        raise LookupError(f"reasoning_gym has no generator {generator!r}")
    return importlib.import_module("reasoning_gym").create_dataset(generator, **json.loads(config))


def _find(generator: str, config: Any) -> Any:
    return _dataset(generator, json.dumps(config, sort_keys=True))


def listing() -> Reply:
    """All generators, each with its category and the defaults of its settings."""
    found = []
    for name, (cls, config) in sorted(_registered().items()):
        defaults = asdict(config())
        shown = {key: value for key, value in defaults.items() if key not in ("seed", "size")}
        parts = cls.__module__.split(".")
        category = parts[1] if len(parts) > 2 else "other"
        found.append({"name": name, "category": category, "config": json.loads(json.dumps(shown, default=str))})
    return {"generators": found}


def opened(generator: str, config: Any) -> Reply:
    """Whether there is such a generator and it takes these settings."""
    _find(generator, config)
    return {"opened": True}


def entry(generator: str, config: Any, index: int) -> Reply:
    """Question, answer and metadata of one task."""
    dataset = _find(generator, config)
    _seed_globals(f"{config.get('seed')}/{index}")
    made = dataset[index]
    try:
        return {"entry": {key: pack(made.get(key)) for key in ("question", "answer", "metadata")}}
    except TypeError as error:
        raise TypeError(f"task {index} of {generator} holds {error}") from None


def _seed_globals(text: str) -> None:
    """A few generators draw from the global random numbers of Python or numpy."""
    random.seed(text)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(random.getrandbits(32))


def score(
    generator: str, config: Any, entry: Any, answer: str, seconds: int, wall_seconds: float, memory_mb: int
) -> Reply:
    """What the generator's scorer gives, or why it gives nothing: `timeout`, `refused`, `raised` or `died`."""
    dataset = _find(generator, config)
    whole = {key: unpack(value) for key, value in entry.items()}
    return _forked(lambda walls: _judge(dataset, whole, answer), seconds, wall_seconds, memory_mb)


def walls() -> Reply:
    """What stands around an answer here."""
    return _forked(lambda walls: {"walls": walls}, 10, 60.0, 256)


def _forked(work: Callable[[str], Reply], seconds: int, wall_seconds: float, memory_mb: int) -> Reply:
    """What `work` gives in a fork of this process that is walled in."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _be_child(work, writing, seconds, wall_seconds, memory_mb)
    os.close(writing)
    try:
        said = _read(reading, time.monotonic() + wall_seconds)
        if said is None:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(reading)
        _, status, used = os.wait4(child, 0)  # else it has ended, or ends by its own limits
    if said is None:
        return {"failed": "timeout", "detail": f"still at work after {wall_seconds:g} s"}
    return _verdict(said, status, used.ru_utime + used.ru_stime >= seconds)


def _read(pipe: int, deadline: float) -> bytes | None:
    """All that is written until the other end is closed; None where that takes too long."""
    said = b""
    while len(said) < _REPLY_BYTES:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        more = os.read(pipe, _REPLY_BYTES)
        if not more:
            break
        said += more
    return said


def _verdict(said: bytes, status: int, out_of_time: bool) -> Reply:
    with contextlib.suppress(ValueError):
        reply = json.loads(said)
        if isinstance(reply, dict):
            return reply
    code = os.waitstatus_to_exitcode(status)
    from toolrl_plugin_reasoning_gym.guard import REFUSED_STATUS

    if code == REFUSED_STATUS:
        return {"failed": "refused", "detail": "the answer made the scorer do what a scorer doesn't"}
    if -code in _OUT_OF_TIME or out_of_time:
        return {"failed": "timeout", "detail": "out of processor time"}
    return {"failed": "died", "detail": f"exit status {code}"}


def _be_child(
    work: Callable[[str], Reply], writing: int, seconds: int, wall_seconds: float, memory_mb: int
) -> NoReturn:
    """Work, write the reply, end."""
    try:
        signal.setitimer(signal.ITIMER_REAL, wall_seconds + 1)  # should the parent be gone
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.dup2(writing, 3)  # all others, the worker's own answers among them, are closed
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        from toolrl_plugin_reasoning_gym import guard

        standing = guard.wall_in(seconds, memory_mb)
        _write(3, json.dumps(work(standing)).encode())
    finally:
        os._exit(0)


def _judge(dataset: Any, entry: Any, answer: str) -> Reply:
    try:
        value = float(dataset.score_answer(answer, entry))
    except BaseException as error:  # noqa: BLE001 - whatever the answer did to the scorer
        return {"failed": "raised", "detail": f"{type(error).__name__}: {error}"[:300]}
    if not math.isfinite(value):
        return {"failed": "raised", "detail": f"the scorer gave {value}"}
    return {"score": min(1.0, max(0.0, value))}


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]
