"""Notifies a run's observers of its events.

An observer's methods are found by their names, those of the events in `toolrl.hookspecs`, and need no mark. Each is
called with the arguments that it takes. A method that could never be called (a misspelled event, `async def`) is
refused when the observer is added. An observer that raises is logged and counted, and the others are still notified, in
the config's order.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolrl.errors import PluginError, RunFolderLostError
from toolrl.plugins.checks import EVENTS, check_observer
from toolrl.protocols import Observer, RunInfo, StepReport
from toolrl.types import Episode

_log = logging.getLogger(__name__)


class Events:
    """The events of one run. Call it from the controller's main thread; it returns when all observers have returned."""

    def __init__(
        self, run: RunInfo, observers: Mapping[str, Observer], hide: Callable[[str], str] | None = None
    ) -> None:
        """`observers` by the name that messages call them; `hide` takes secrets out of the names of metrics, which
        tools and rewards choose. Raises PluginError for one whose methods don't fit the events."""
        self._run = run
        self._hide = hide
        self._methods: dict[str, list[tuple[str, Callable[..., None], Collection[str]]]] = {it: [] for it in EVENTS}
        """By event: the observer's name, its method, and the arguments that this takes."""
        self.extra_metrics: Mapping[str, float] = {}
        """Metrics of every report."""
        self.failures: dict[str, int] = {}
        """How often each observer has raised; those that never did are left out."""
        for name, observer in observers.items():
            self.add(name, observer)

    def phase_start(self, phase: str, episodes: int) -> None:
        """The run begins another phase, which samples so many episodes."""
        self._notify("toolrl_phase_start", phase=phase, episodes=episodes)

    def run_start(self) -> None:
        """Everything is built and started."""
        self._notify("toolrl_run_start")

    def episode_end(self, episode: Episode) -> None:
        """An episode was scored and released."""
        if self._hide is not None:
            episode = replace(episode, metrics=_named(episode.metrics, self._hide))
        self._notify("toolrl_episode_end", episode=episode)

    def step_end(self, report: StepReport) -> None:
        """A step of training, or an evaluation, is done. Raises RunFolderLostError."""
        report = replace(report, metrics={**report.metrics, **self.extra_metrics})
        if self._hide is not None:
            report = replace(report, metrics=_named(report.metrics, self._hide))
        self._notify("toolrl_step_end", report=report)

    def checkpoint_saved(self, step: int, path: Path) -> None:
        """A checkpoint is complete on disk."""
        self._notify("toolrl_checkpoint_saved", step=step, path=path)

    def run_end(self, error: BaseException | None) -> None:
        """The run is over; `error` is what ended it, None where it finished."""
        self._notify("toolrl_run_end", error=error)

    def add(self, name: str, observer: Observer) -> None:
        """Notify this observer too, after the others. Raises PluginError."""
        try:
            events = check_observer(observer)
        except PluginError as error:
            raise PluginError(f"observer {name!r}: {error.message}", hint=error.hint) from error
        for event in events:
            method = getattr(observer, event)
            self._methods[event].append((name, method, inspect.signature(method).parameters))

    def _notify(self, event: str, **facts: Any) -> None:
        facts["run"] = self._run
        for name, method, takes in self._methods[event]:
            try:
                method(**{key: value for key, value in facts.items() if key in takes})
            except RunFolderLostError:  # Of the run's own record, without which there is no run.
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an observer must not end the run that it watches
                count = self.failures[name] = self.failures.get(name, 0) + 1
                # The traceback once; a thousand steps would print a thousand of them.
                _log.error(
                    "observer %r failed in %s (%s: %s); failures of it so far: %d",
                    name, event, type(error).__name__, error, count, exc_info=error if count == 1 else None,
                )  # fmt: skip


def _named(metrics: Mapping[str, float], hide: Callable[[str], str]) -> dict[str, float]:
    return {hide(name): value for name, value in metrics.items()}
