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
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NoReturn

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
        gc.freeze()
    serve: dict[str, Callable[..., Reply]] = {"list": listing, "opened": opened, "entry": entry, "score": score}
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


@functools.lru_cache(maxsize=256)
def _entry(generator: str, config: str, index: int) -> Any:
    """One task. A few generators draw from the global random numbers of Python or numpy, which are set for it."""
    dataset = _dataset(generator, config)
    random.seed(f"{json.loads(config).get('seed')}/{index}")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(random.getrandbits(32))
    return dataset[index]


def _key(config: Any) -> str:
    return json.dumps(config, sort_keys=True)


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
    _dataset(generator, _key(config))
    return {"opened": True}


def entry(generator: str, config: Any, index: int) -> Reply:
    """Question and answer of one task."""
    made = _entry(generator, _key(config), index)
    answer = made["answer"]
    return {"question": str(made["question"]), "answer": None if answer is None else str(answer)}


def score(
    generator: str, config: Any, index: int, answer: str, seconds: int, wall_seconds: float, memory_mb: int
) -> Reply:
    """What the generator's scorer gives, or why it gives nothing: `timeout`, `refused`, `raised` or `died`."""
    dataset, made = _dataset(generator, _key(config)), _entry(generator, _key(config), index)
    return _forked(lambda: _judge(dataset, made, answer), seconds, wall_seconds, memory_mb)


def _forked(work: Callable[[], Reply], seconds: int, wall_seconds: float, memory_mb: int) -> Reply:
    """What `work` gives in a fork of this process that is walled in."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _be_child(work, writing, seconds, wall_seconds, memory_mb)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read(_REPLY_BYTES)  # Until the fork ends, which has limits and an alarm of its own.
    _, status, used = os.wait4(child, 0)
    return _verdict(said, status, used.ru_utime + used.ru_stime >= seconds)


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
        return {"failed": "timeout", "detail": "out of time"}
    return {"failed": "died", "detail": f"exit status {code}"}


def _be_child(work: Callable[[], Reply], writing: int, seconds: int, wall_seconds: float, memory_mb: int) -> NoReturn:
    """Work, write the reply, end."""
    try:
        signal.setitimer(signal.ITIMER_REAL, wall_seconds)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.dup2(writing, 3)  # all others, the worker's own answers among them, are closed
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        from toolrl_plugin_reasoning_gym import guard

        guard.wall_in(seconds, memory_mb)
        os.write(3, json.dumps(work()).encode())
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
