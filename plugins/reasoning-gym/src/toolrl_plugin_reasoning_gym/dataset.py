"""Data set `reasoning_gym`: tasks of the library's generators, found by index.

Seed and index decide the task. Which generator makes task i is drawn by the data set's seed; that generator counts its
own tasks from 0, under a seed that no other data set seed shares. The task carries what its scorer needs.
"""

from __future__ import annotations

import random
from array import array
from functools import cached_property
from typing import Any

from toolrl.errors import ConfigError, DataError
from toolrl.protocols import BuildContext
from toolrl.tools.subprocess_pool import WorkerError
from toolrl.types import Message, Task
from toolrl_plugin_reasoning_gym.options import MAX_SIZE, DataOptions, GeneratorOptions
from toolrl_plugin_reasoning_gym.process import generators, require_library

EXTRA = "reasoning_gym"
"""The key of `Task.extra` under which a task keeps `generator`, `config` and `entry`."""


class ReasoningGym:
    """Tasks of one generator or of several."""

    def __init__(self, options: DataOptions, context: BuildContext) -> None:
        """Raises ConfigError where the library isn't there, or has no such generator or setting."""
        self._options = options
        check_generators(options, context.where or None)
        self._worker: Any = generators()

    def __len__(self) -> int:
        return self._options.size

    def __getitem__(self, index: int) -> Task:
        """Raises DataError for a task that its generator can't make."""
        options = self._options
        if not 0 <= index < options.size:
            raise IndexError(f"task {index} of {options.size}")
        which, own_index = self._plan[0][index], self._plan[1][index]
        spec = options.generators[which]
        config = library_config(spec, options.seed, self._counts[which])
        if self._worker is None:
            self._worker = generators()
        try:
            entry = self._worker.ask(do="entry", generator=spec.name, config=config, index=own_index)["entry"]
        except WorkerError as error:
            raise DataError(
                f"task {index}: the generator {spec.name!r} can't make its task {own_index}: {error}",
                hint="Another config for it, or another seed, may do.",
            ) from None
        return self._task(index, spec, entry)

    def _task(self, index: int, spec: GeneratorOptions, entry: dict[str, Any]) -> Task:
        options, question = self._options, str(entry["question"])
        text = f"{question}\n\n{options.instruction}" if options.instruction else question
        system = (Message("system", options.system_prompt),) if options.system_prompt is not None else ()
        environment = spec.environment if spec.environment is not None else options.environment
        return Task(
            id=f"{spec.name}-{options.seed}-{index}",
            messages=(*system, Message("user", text)),
            answer=entry["answer"],
            environment=environment,
            extra={EXTRA: {"generator": spec.name, "config": spec.config, "entry": entry}},
        )

    @cached_property
    def _plan(self) -> tuple[array[int], array[int]]:
        """For each task its generator, and the generator's own index."""
        options = self._options
        weights = [spec.weight for spec in options.generators]
        chance = random.Random(f"reasoning_gym/{options.seed}")
        which = array("H", chance.choices(range(len(weights)), weights, k=options.size))
        counts, own = [0] * len(weights), array("L")
        for number in which:
            own.append(counts[number])
            counts[number] += 1
        return which, own

    @cached_property
    def _counts(self) -> list[int]:
        """How many tasks each generator makes."""
        counts = [0] * len(self._options.generators)
        for number in self._plan[0]:
            counts[number] += 1
        return counts

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_worker": None}


def library_config(spec: GeneratorOptions, seed: int, size: int) -> dict[str, Any]:
    """The settings that the library's generator gets. It seeds task i by seed + i, so neighbouring seeds would give the
    same tasks, shifted by one: ours lie as far apart as a data set can be long."""
    return {"seed": seed * MAX_SIZE, **spec.config, "size": max(size, 1)}


def check_generators(options: DataOptions, where: str | None = None) -> None:
    """Raises ConfigError with each generator that the library doesn't have or that refuses its settings."""
    require_library(where)
    worker, problems = generators(), []
    try:
        known = {item["name"]: item["config"] for item in worker.ask(do="list")["generators"]}
    except WorkerError as error:
        raise ConfigError(str(error), where=where, hint="Try: python -c 'import reasoning_gym'") from None
    for number, spec in enumerate(options.generators):
        problem = _problem(worker, spec, known)
        if problem is not None:
            problems.append(f"generators[{number}]: {problem}")
    if problems:
        raise ConfigError(problems, where=where, hint="toolrl reasoning-gym list shows generators and settings.")


def _problem(worker: Any, spec: GeneratorOptions, known: dict[str, dict[str, Any]]) -> str | None:
    if spec.name not in known:
        return f"reasoning_gym has no generator {spec.name!r}{_nearest(spec.name, known)}"
    for key in spec.config:
        if key != "seed" and key not in known[spec.name]:
            settings = ", ".join(known[spec.name]) or "none"
            return f"{spec.name} has no setting {key!r}{_nearest(key, known[spec.name])}; it has: {settings}"
    try:
        worker.ask(do="opened", generator=spec.name, config=library_config(spec, 0, 1))
    except WorkerError as error:
        return f"{spec.name} refuses its settings: {error}"
    return None


def _nearest(name: str, known: Any) -> str:
    import difflib

    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
