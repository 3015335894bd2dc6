"""The observer `console`: what a run is doing, its metrics, its results.

On a terminal a view of the present phase is drawn in place, below lines that stay; in a notebook it is one output that
is replaced. Elsewhere there are only lines: one for each phase until the first step is done, then one for each report.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from toolrl.protocols import BuildContext, RunInfo, StepReport
from toolrl.runs.folder import RunFolder
from toolrl.runs.formatting import format_duration
from toolrl.types import Episode
from toolrl_plugin_console import results
from toolrl_plugin_console.options import ConsoleOptions
from toolrl_plugin_console.texts import episode_text, metrics_line, shown_path

_METRICS = ("accuracy", "errors/count", "truncated", "reward/mean", "calls/mean", "usage/cost", "loss", "time/step")
"""Metrics of a line. Those of what goes wrong come early, as a narrow terminal drops the last."""
_FEW_SUCCESSES = 0.5
"""Share of calls without an error below which a line shows `calls/success`."""
_SAMPLE_CHARACTERS = 2000
"""Of a printed episode; a longer one is cut in the middle."""
_PROGRESS_SECONDS = 30.0
"""Seconds without a line after which an episode's end prints one, in a file or a pipe."""
_NOTEBOOK_SECONDS = 1.0
"""Between two updates of a notebook's output."""


class _Console(Console):
    """Rich's console for a program that outlives the reader of its output."""

    def on_broken_pipe(self) -> None:
        """Print no more. Rich would end the program."""
        self.quiet = True

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor: a process that is killed couldn't bring it back."""
        return False


class ConsoleObserver:
    """The observer `console`."""

    def __init__(
        self,
        options: ConsoleOptions,
        context: BuildContext | None = None,
        *,
        file: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._clock = clock
        out = file or sys.stdout
        self._notebook = _notebook_output() if file is None else None
        # A notebook's stdout says that it is a terminal.
        terminal = None if self._notebook is None else False
        self._console = _Console(file=out, force_terminal=terminal, force_jupyter=False)
        # FORCE_COLOR makes any file a terminal to rich; a notebook runs its `!toolrl` on a pseudo-terminal.
        by_notebook = "JPY_PARENT_PID" in os.environ
        drawn = getattr(out, "isatty", bool)() and self._console.is_interactive and not by_notebook
        self._in_place = drawn if options.live is None else options.live
        self._live: Live | None = None
        self._notebook_at = 0.0
        self._printed_at = clock()
        self._spinner = Spinner("dots")
        self._run: RunInfo | None = None
        self._started = clock()
        self._phase, self._planned, self._since = "starting", 0, self._started
        self._told: set[str] = set()
        """Phases that have a line."""
        self._steps = 0
        self._episodes: Counter[str] = Counter()
        """Of the running step or evaluation, by kind."""
        self._history = results.History()
        self._sample: Episode | None = None
        self._checkpoint: Path | None = None

    # Events.

    def toolrl_phase_start(self, run: RunInfo, phase: str, episodes: int) -> None:
        """Show it; as a line before the first step, and where nothing is drawn for each evaluation."""
        self._phase, self._planned, self._since = phase, episodes, self._clock()
        lasts = phase.startswith("evaluating") or set(self._history.last) <= {"eval"}
        if self._live is None and lasts and phase not in self._told:
            self._told.add(phase)
            self._print(Text(f"{phase}, {episodes:,} episodes" if episodes else phase, "dim"))
        self._refresh()

    def toolrl_run_start(self, run: RunInfo) -> None:
        """Print the run's name and folder, and start the view."""
        self._run, self._started, self._steps = run, self._clock(), run.start_step
        text = Text.assemble(("toolrl ", "bold"), run.name, ("  " + shown_path(run.directory), "dim"))
        if run.start_step:
            text.append(f"  resumes at step {run.start_step}", "yellow")
            for line in RunFolder.open(run.directory).metrics_lines():
                self._history.add(line)
        self._print(text)
        if self._in_place:
            self._live = Live(
                console=self._console,
                get_renderable=self._view,
                transient=True,
                redirect_stdout=self._console.file is sys.stdout,
                redirect_stderr=sys.stderr.isatty(),
            )
            self._live.start()

    def toolrl_episode_end(self, run: RunInfo, episode: Episode) -> None:
        """Count it, and keep it as the next sample; print a line now and then where nothing is drawn."""
        self._episodes[episode.group.partition("-")[0]] += 1
        self._sample = episode
        if self._live is None and self._notebook is None and self._clock() - self._printed_at >= _PROGRESS_SECONDS:
            self._print(Text(self._now(), "dim"))
        if self._clock() - self._notebook_at >= _NOTEBOOK_SECONDS:
            self._refresh()

    def toolrl_step_end(self, run: RunInfo, report: StepReport) -> None:
        """Print the metrics, and a sample when one is due."""
        evaluation = report.kind == "eval"
        if not evaluation:
            self._steps = report.step
        self._history.add(report)
        sample, self._sample = self._sample, None
        self._episodes[report.kind] = 0
        if evaluation or self._due(self._options.every, report.step):
            self._print(self._line(report))
        every = self._options.sample_every
        if sample is not None and not evaluation and every and self._due(every, report.step):
            self._print(episode_text(sample, _SAMPLE_CHARACTERS))
        self._refresh()

    def toolrl_checkpoint_saved(self, run: RunInfo, step: int, path: Path) -> None:
        """Print its folder."""
        self._checkpoint = path
        self._print(Text(f"checkpoint of step {step}: {shown_path(path)}", "dim"))

    def toolrl_run_end(self, run: RunInfo, error: BaseException | None) -> None:
        """Take the view away and print how the run ended, its metrics and paths, and what can follow."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        took = format_duration(self._clock() - self._started)
        # CancelledError is how a signal reaches the loop; neither it nor KeyboardInterrupt is an Exception.
        word = "finished" if error is None else "failed" if isinstance(error, Exception) else "interrupted"
        at = f" at step {self._steps}/{run.total_steps}" if run.total_steps else ""
        # The command line prints the error's message.
        why = f" ({type(error).__name__})" if isinstance(error, Exception) else ""
        end = Text(f"{word} after {took}{at}{why}", "bold green" if error is None else "bold red")
        self._print(end)
        if self._notebook is not None:
            self._notebook.update({"text/plain": end.plain}, raw=True)
        if self._run is None:
            return  # It never started.
        if self._checkpoint is None and run.start_step:
            self._checkpoint = max(run.directory.glob("checkpoints/step-*"), default=None)
        for grid in results.table(self._history, self._options.metrics, self._console.width):
            self._console.print(grid)
        if unknown := [name for name in self._options.metrics if name not in self._history.names]:
            self._print(Text(f"observers: console: metrics: no report has {', '.join(unknown)}", "yellow"))
        if self._history.curve:
            self._print(self._history.curve_line(min(self._console.width, 80)))
        for text in results.paths(run, self._checkpoint):
            self._print(text)
        complete = error is None or self._steps >= run.total_steps
        for text in results.next_commands(run, self._history, self._checkpoint, complete=complete):
            self._print(text)

    # Drawing.

    def _due(self, every: int, step: int) -> bool:
        total = self._run.total_steps if self._run else 0
        return step % every == 0 or step in (1, total)

    def _print(self, what: RenderableType) -> None:
        self._printed_at = self._clock()
        self._console.print(what, soft_wrap=True, highlight=False)

    def _line(self, report: StepReport) -> Text:
        total = self._run.total_steps if self._run else 0
        head = f"{report.kind:<5} {report.step:>{len(str(total))}}/{total}" if total else report.kind
        # The view shows it, too.
        left = self._left() if report.kind != "eval" and self._live is None else None
        tail = f"left {format_duration(left)}" if left is not None else ""
        failing = report.metrics.get("calls/success", 1.0) < _FEW_SUCCESSES
        names = dict.fromkeys(
            [*_METRICS[:4], *(["calls/success"] if failing else []), *_METRICS[4:], *self._options.metrics]
        )
        return metrics_line(head, report.metrics, names, tail, self._console.width if self._in_place else None)

    def _left(self) -> float | None:
        """Seconds that the other steps will take at the pace so far; None before the first."""
        done = self._steps - self._run.start_step if self._run is not None else 0
        if self._run is None or done <= 0:
            return None
        return (self._clock() - self._started) / done * max(self._run.total_steps - self._steps, 0)

    def _now(self) -> str:
        """The present phase."""
        evaluates = self._phase.startswith("evaluating")
        done = sum(count for kind, count in self._episodes.items() if (kind == "eval") == evaluates)
        episodes = f": {done:,}/{self._planned:,} episodes" if self._planned else ""
        elapsed = self._clock() - self._since
        left = elapsed / done * (self._planned - done) if 0 < done < self._planned else None
        shown = f", {format_duration(left)} left" if left is not None and self._live is None else ""
        return f"{self._phase}{episodes}  {format_duration(elapsed)}{shown}"

    def _times(self) -> list[str]:
        """Steps done, time elapsed and time left."""
        total, left = self._run.total_steps if self._run else 0, self._left()
        elapsed = f"{format_duration(self._clock() - self._started)} elapsed"
        steps = [f"step {self._steps}/{total}"] if total else []
        return [*steps, elapsed, *([f"{format_duration(left)} left"] if left is not None else [])]

    def _view(self) -> RenderableType:
        now = Table.grid(padding=(0, 1))
        now.add_row(self._spinner, Text(self._now(), no_wrap=True, overflow="ellipsis"))
        total, (first, *rest) = self._run.total_steps if self._run else 0, self._times()
        row = Table.grid(padding=(0, 1))
        room = self._console.width - sum(len(text) + 1 for text in (first, *rest))
        bar = [ProgressBar(total=total, completed=min(self._steps, total), width=min(room, 32))]
        row.add_row(Text(first, "bold"), *(bar if total and room > 3 else ()), *(Text(text, "dim") for text in rest))
        curve = self._history.curve_line(min(self._console.width, 80))
        return Group(now, row, *([curve] if curve else ()))

    def _refresh(self) -> None:
        """Bring a notebook's output up to date; a terminal's view is drawn four times a second."""
        if self._notebook is not None:
            self._notebook_at = self._clock()
            lines = [self._now(), "  ".join(self._times()), self._history.curve_line(80).plain]
            self._notebook.update({"text/plain": "\n".join(filter(None, lines))}, raw=True)


def _notebook_output() -> Any:
    """A handle of an output that can be replaced, in a notebook; None elsewhere."""
    if not Console().is_jupyter:
        return None
    from IPython.display import display

    return display({"text/plain": "starting"}, raw=True, display_id=True)
