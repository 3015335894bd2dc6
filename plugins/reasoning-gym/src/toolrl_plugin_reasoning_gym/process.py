"""The processes in which reasoning_gym runs (`worker.py`): the one that all data sets of this process ask, and those
that score answers."""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from toolrl.errors import ConfigError, RewardError
from toolrl.tools.subprocess_pool import ProcessCrashError
from toolrl_common.workers import RestartingWorker, WorkerError

if TYPE_CHECKING:
    from toolrl_plugin_reasoning_gym.options import DataOptions, GeneratorOptions

LIBRARY = "reasoning_gym"
INSTALL = "pip install 'toolrl-plugin-reasoning-gym[library]'"
MAKE_SECONDS = 600.0
"""For a generator to set itself up, and for one task; some search for theirs."""
GRACE_SECONDS = 5.0
"""Beyond a worker's own limits, before it is killed."""
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TZ")
_SET = {
    "PYTHONHASHSEED": "0",  # some generators take words in the order of a set
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def require_library(where: str | None = None) -> None:
    """Raises ConfigError where reasoning_gym isn't installed."""
    if importlib.util.find_spec(LIBRARY) is None:
        missing = ModuleNotFoundError(f"No module named {LIBRARY!r}", name=LIBRARY)
        raise ConfigError("the library reasoning_gym isn't installed", where=where, hint=INSTALL) from missing


def worker(*arguments: str) -> RestartingWorker:
    """One process. The run's environment variables, secrets among them, stay out of it."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | _SET
    return RestartingWorker("toolrl_plugin_reasoning_gym.worker", *arguments, environment=environment)


class Generators:
    """A worker that makes tasks. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = worker()
        weakref.finalize(self, self._process.close)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Raises WorkerError."""
        with self._lock:
            return _ask(self._process, request)


@functools.cache
def generators() -> Generators:
    """The worker of this process's data sets; it ends with the process."""
    return Generators()


def list_generators(where: str | None = None) -> list[dict[str, Any]]:
    """Name, category and settings of each generator. Raises ConfigError where the library can't be used."""
    require_library(where)
    try:
        found: list[dict[str, Any]] = generators().ask(do="list")["generators"]
    except WorkerError as error:
        raise ConfigError(str(error), where=where, hint="Try: python -c 'import reasoning_gym'") from None
    return found


def score(process: RestartingWorker, request: dict[str, Any]) -> dict[str, Any]:
    """`score`, or `failed` with `detail`. Raises RewardError where the answer couldn't be judged at all."""
    try:
        _ask(process, {"do": "entry", **{key: request[key] for key in ("generator", "config", "index")}})
        try:
            return process.ask({"do": "score", **request}, 2 * request["wall_seconds"] + GRACE_SECONDS)
        except ProcessCrashError as error:
            return {"failed": "died", "detail": str(error)}
    except WorkerError as error:
        raise RewardError(f"the answer can't be scored: {error}", hint="Try: toolrl doctor reasoning-gym") from None


def _ask(process: RestartingWorker, request: dict[str, Any]) -> dict[str, Any]:
    """Of requests without a model's answer: no answer is at fault where the worker is lost."""
    try:
        return process.ask(request, MAKE_SECONDS)
    except ProcessCrashError as error:
        raise WorkerError(str(error)) from None


# What a config names.

SEED_DISTANCE = 2**20
"""As many as a data set can have tasks."""


def library_config(spec: GeneratorOptions, seed: int, size: int) -> dict[str, Any]:
    """The settings that the library's generator gets. It seeds task i by seed + i, so neighbouring seeds would give the
    same tasks, shifted by one: ours lie as far apart as a data set can be long."""
    return {"seed": seed * SEED_DISTANCE, **spec.config, "size": max(size, 1)}


def check_generators(options: DataOptions, where: str | None = None) -> None:
    """Raises ConfigError with each generator that the library doesn't have or that refuses its settings."""
    known = {item["name"] for item in list_generators(where)}
    found = [_problem(spec, known) for spec in options.generators]
    if problems := [f"generators[{number}]: {problem}" for number, problem in enumerate(found) if problem]:
        raise ConfigError(problems, where=where, hint="toolrl reasoning-gym list shows generators and settings.")


def _problem(spec: GeneratorOptions, known: set[str]) -> str | None:
    if spec.name not in known:
        return f"reasoning_gym has no generator {spec.name!r}"
    try:
        generators().ask(do="opened", generator=spec.name, config=library_config(spec, 0, 1))
    except WorkerError as error:
        return f"{spec.name} refuses its settings: {error}"
    return None
