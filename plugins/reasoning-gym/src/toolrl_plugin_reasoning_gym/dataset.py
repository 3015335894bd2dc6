"""Data set `reasoning_gym`: tasks of the library's generators, found by index.

Seed and index decide the task. Which generator makes task i is drawn by the data set's seed; that generator counts its
own tasks from 0, under a seed that no other data set seed shares. The task carries these: its
scorer makes it again.
"""

from __future__ import annotations

import random
from array import array
from functools import cached_property

from toolrl.errors import DataError
from toolrl.protocols import BuildContext
from toolrl.types import Message, Task
from toolrl_common.workers import WorkerError
from toolrl_plugin_reasoning_gym.options import DataOptions
from toolrl_plugin_reasoning_gym.process import check_generators, generators, library_config

EXTRA = "reasoning_gym"
"""The key of `Task.extra` under which a task keeps `generator`, `config` and `index`."""


class ReasoningGym:
    """Tasks of one generator or of several."""

    def __init__(self, options: DataOptions, context: BuildContext) -> None:
        """Raises ConfigError where the library isn't there, or has no such generator or setting."""
        self._options = options
        check_generators(options, context.where or None)

    def __len__(self) -> int:
        return self._options.size

    def __getitem__(self, index: int) -> Task:
        """Raises DataError for a task that its generator can't make."""
        options = self._options
        if not 0 <= index < options.size:
            raise IndexError(f"task {index} of {options.size}")
        which, own, counts = self._plan
        spec, own_index = options.generators[which[index]], own[index]
        config = library_config(spec, options.seed, counts[which[index]])
        carried = {"generator": spec.name, "config": config, "index": own_index}
        try:
            entry = generators().ask(do="entry", **carried)
        except WorkerError as error:
            raise DataError(
                f"task {index}: the generator {spec.name!r} can't make its task {own_index}: {error}",
                hint="Another config for it, or another seed, may do.",
            ) from None
        question = entry["question"]
        text = f"{question}\n\n{options.instruction}" if options.instruction else question
        system = (Message("system", options.system_prompt),) if options.system_prompt is not None else ()
        environment = spec.environment if spec.environment is not None else options.environment
        return Task(
            id=f"{spec.name}-{options.seed}-{index}",
            messages=(*system, Message("user", text)),
            answer=entry["answer"],
            environment=environment,
            extra={EXTRA: carried},
        )

    @cached_property
    def _plan(self) -> tuple[array[int], array[int], list[int]]:
        """For each task its generator, and the generator's own index; how many tasks each generator makes."""
        options = self._options
        weights = [spec.weight for spec in options.generators]
        chance = random.Random(f"reasoning_gym/{options.seed}")
        which = array("H", chance.choices(range(len(weights)), weights, k=options.size))
        counts, own = [0] * len(weights), array("L")
        for number in which:
            own.append(counts[number])
            counts[number] += 1
        return which, own, counts
