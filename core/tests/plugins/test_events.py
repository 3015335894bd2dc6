"""Events: every observer is told, and what would never be called is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolrl.errors import PluginError
from toolrl.hookspecs import hookimpl
from toolrl.plugins.checks import EVENTS
from toolrl.plugins.events import Events
from toolrl.protocols import StepReport
from toolrl_testing.fakes import make_episode

RUN: Any = SimpleNamespace(name="demo")


class Recorder:
    """Takes every event, by its name alone."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def toolrl_phase_start(self, run: Any, phase: str, episodes: int) -> None:
        self.seen.append(("phase_start", run, phase, episodes))

    def toolrl_run_start(self, run: Any) -> None:
        self.seen.append(("run_start", run))

    def toolrl_episode_end(self, run: Any, episode: Any) -> None:
        self.seen.append(("episode_end", run, episode))

    def toolrl_step_end(self, run: Any, report: Any) -> None:
        self.seen.append(("step_end", run, report))

    def toolrl_checkpoint_saved(self, run: Any, step: int, path: Path) -> None:
        self.seen.append(("checkpoint_saved", run, step, path))

    def toolrl_run_end(self, run: Any, error: BaseException | None) -> None:
        self.seen.append(("run_end", run, error))


def _fire_all(events: Events) -> None:
    events.phase_start("sampling", 8)
    events.run_start()
    events.episode_end("episode")  # type: ignore[arg-type]
    events.step_end(REPORT)
    events.checkpoint_saved(3, Path("c"))
    events.run_end(None)


REPORT = StepReport(1, "train", {})
ALL = [
    ("phase_start", RUN, "sampling", 8),
    ("run_start", RUN),
    ("episode_end", RUN, "episode"),
    ("step_end", RUN, REPORT),
    ("checkpoint_saved", RUN, 3, Path("c")),
    ("run_end", RUN, None),
]


def test_every_event_reaches_an_observer_with_its_facts() -> None:
    recorder = Recorder()
    _fire_all(Events(RUN, {"recorder": recorder}))
    assert recorder.seen == ALL
    assert len(ALL) == len(EVENTS)


def test_a_method_needs_only_the_arguments_it_uses_and_may_be_marked() -> None:
    class Small:
        seen: list[Any] = []  # noqa: RUF012

        def toolrl_step_end(self, report: Any) -> None:
            self.seen.append(report)

        @hookimpl
        def toolrl_run_end(self) -> None:
            self.seen.append("end")

    _fire_all(Events(RUN, {"small": Small()}))
    assert Small.seen == [REPORT, "end"]


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_one_that_raises_is_logged_and_counted_and_hides_nothing(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def toolrl_step_end(self) -> None:
            raise kind("disk full")

    before, after = Recorder(), Recorder()
    events = Events(RUN, {"before": before, "failing": Failing(), "after": after})
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            events.step_end(REPORT)
        events.run_end(None)
    assert len(before.seen) == len(after.seen) == 4
    assert events.failures == {"failing": 3}
    assert f"observer 'failing' failed in toolrl_step_end ({kind.__name__}: disk full)" in caplog.text
    assert caplog.text.count("Traceback") == 1


def test_names_of_metrics_hold_no_secret() -> None:
    """Tools and rewards name them, and may name them after an address that they were given."""
    told: list[Any] = []
    observer = SimpleNamespace(
        toolrl_step_end=lambda report: told.append(report.metrics),
        toolrl_episode_end=lambda episode: told.append(episode.metrics),
    )
    events = Events(SimpleNamespace(), {"x": observer}, lambda text: text.replace("s3cret", "${KEY}"))
    events.step_end(StepReport(1, "train", {"tool/s3cret/seconds": 1.0}))
    events.episode_end(make_episode(metrics={"s3cret": 1.0}))
    assert told == [{"tool/${KEY}/seconds": 1.0}, {"${KEY}": 1.0}]


class _Misspelled:
    def toolrl_step_ended(self) -> None: ...


class _Async:
    async def toolrl_step_end(self) -> None: ...


class _NoMethod:
    toolrl_step_end = 5


class _Silent:
    def step_end(self) -> None: ...


@pytest.mark.parametrize(
    ("observer", "message", "hint"),
    [
        (_Misspelled(), "no event 'toolrl_step_ended'", "Did you mean 'toolrl_step_end'?"),
        (_Async(), "toolrl_step_end is `async def`", "Write `def toolrl_step_end`"),
        (_NoMethod(), "toolrl_step_end is a int, not a method", "def toolrl_step_end(self"),
        (_Silent(), "_Silent has no method that is an event", "toolrl_step_end"),
    ],
)
def test_what_would_never_be_called_is_refused_when_it_is_registered(observer: Any, message: str, hint: str) -> None:
    with pytest.raises(PluginError) as caught:
        Events(RUN, {"mine": observer})
    assert "observer 'mine'" in caught.value.message
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
