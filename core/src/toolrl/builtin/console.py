"""The observer `console`: a run's progress on the terminal.

On a terminal: a progress bar and a table that are redrawn in place, with a sampled episode printed above them now and
then. Anywhere else: one plain line each few steps. Control characters of models and tools are made visible, so that
they can't steer the terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from toolrl.builtin.options import ConsoleOptions
from toolrl.protocols import BuildContext, RunInfo, StepReport
from toolrl.runs.formatting import format_duration, format_metric, format_number
from toolrl.terminal_text import visible
from toolrl.types import Episode

TABLE_METRICS = (
    "accuracy",
    "reward/mean",
    "calls/mean",
    "calls/success",
    "turns/mean",
    "tokens/sampled",
    "loss",
    "entropy",
    "kl",
    "grad_norm",
    "errors/rate",
    "errors/count",
    "usage/cost",
    "speed/tokens_per_second",
    "time/step",
)
"""Metrics of the console's table."""

LINE_METRICS = ("accuracy", "errors/count", "reward/mean", "calls/mean", "usage/cost", "loss", "time/step")
"""Metrics of the console's plain lines."""

_STYLES = {"prompt": "dim", "model": "green", "tool": "yellow", "call": "cyan", "error": "bold red"}


class _Console(Console):
    """Rich's console for a program that outlives the reader of its output."""

    def on_broken_pipe(self) -> None:
        """Print no more. Rich would end the program."""
        self.quiet = True


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
        no_color = None if options.color is None else not options.color
        self._console = _Console(file=file or sys.stdout, no_color=no_color, force_terminal=options.color or None)
        self._in_place = self._console.is_terminal if options.live is None else options.live
        self._live: Live | None = None
        self._run: RunInfo | None = None
        self._started = clock()
        self._steps = 0
        self._episodes = 0
        self._latest: dict[str, StepReport] = {}
        self._sample: Episode | None = None

    # Events.

    def toolrl_run_start(self, run: RunInfo) -> None:
        """Print the run's name and folder, and start the live view."""
        self._run, self._started, self._steps = run, self._clock(), run.start_step
        text = Text.assemble(("toolrl ", "bold"), run.name, ("  " + str(run.directory), "dim"))
        if run.start_step:
            text.append(f"  resumes at step {run.start_step}", "yellow")
        self._print(text)
        if self._in_place:
            self._live = Live(console=self._console, get_renderable=self._view, refresh_per_second=4)
            self._live.start()

    def toolrl_episode_end(self, run: RunInfo, episode: Episode) -> None:
        """Count it, and keep it as the next sample."""
        self._episodes += 1
        self._sample = episode

    def toolrl_step_end(self, run: RunInfo, report: StepReport) -> None:
        """Show the metrics; a line where there is no live view, a sample when one is due."""
        self._latest[report.kind] = report
        evaluation = report.kind == "eval"
        if not evaluation:
            self._steps = report.step
        sample, self._sample, self._episodes = self._sample, None, 0
        if self._live is not None:
            self._live.refresh()
        # The live view shows training steps itself; evaluations are few and stay on the screen.
        if evaluation or (self._live is None and self._due(self._options.every, report.step)):
            self._print(self._line(report))
        every = self._options.sample_every
        if sample is not None and not evaluation and every and self._due(every, report.step):
            self._print(episode_text(sample, self._options.sample_characters))

    def toolrl_checkpoint_saved(self, run: RunInfo, step: int, path: Path) -> None:
        """Print its folder."""
        self._print(Text(f"checkpoint of step {step}: {path}", "dim"))

    def toolrl_run_end(self, run: RunInfo, error: BaseException | None) -> None:
        """Leave the last view standing and print how the run ended."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        took = format_duration(self._clock() - self._started)
        if error is None:
            self._print(Text(f"finished in {took}; {run.directory}", "bold green"))
            return
        # CancelledError is how a signal reaches the loop; neither it nor KeyboardInterrupt is an Exception.
        word = "failed" if isinstance(error, Exception) else "interrupted"
        # The command line prints its message.
        self._print(Text(f"{word} after {took} at step {self._steps} ({type(error).__name__})", "bold red"))

    # Drawing.

    def _due(self, every: int, step: int) -> bool:
        total = self._run.total_steps if self._run else 0
        return step % every == 0 or step in (1, total)

    def _print(self, what: RenderableType) -> None:
        self._console.print(what, soft_wrap=True, highlight=False)

    def _names(self, usual: tuple[str, ...]) -> list[str]:
        return list(dict.fromkeys([*usual, *self._options.metrics]))

    def _line(self, report: StepReport) -> Text:
        total = self._run.total_steps if self._run else 0
        progress = f"{report.kind:<5} {report.step:>{len(str(total))}}/{total}" if total else report.kind
        text = Text.assemble((progress, "bold"))
        for name in self._names(LINE_METRICS):
            if name in report.metrics and (report.metrics[name] or name != "errors/count"):
                text.append(f"  {name} ", "dim")
                text.append(format_metric(report.metrics, name), "none")
        if report.kind != "eval" and (left := self._left()) is not None:
            text.append(f"  left {format_duration(left)}", "dim")
        return text

    def _left(self) -> float | None:
        """Seconds that the other steps will take at the pace so far; None before the first."""
        if self._run is None:
            return None
        done = self._steps - self._run.start_step
        if done <= 0:
            return None
        return (self._clock() - self._started) / done * max(self._run.total_steps - self._steps, 0)

    def _view(self) -> RenderableType:
        total = self._run.total_steps if self._run else 0
        left = self._left()
        head = Table.grid(padding=(0, 1))
        steps: tuple[RenderableType, ...] = (
            Text(f"step {self._steps}/{total}", "bold"),
            ProgressBar(total=total, completed=min(self._steps, total), width=32),
        )
        head.add_row(
            *(steps if total else ()),
            Text(f"{format_duration(self._clock() - self._started)} gone", "dim"),
            Text(f"{format_duration(left)} left" if left is not None else "", "dim"),
            Text(f"{self._episodes} episodes in this step" if self._episodes else "", "dim"),
        )
        return Group(head, self._table()) if self._latest else head

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("metric")
        for report in self._latest.values():
            table.add_column(f"{report.kind} {report.step}", justify="right")
        for name in self._names(TABLE_METRICS):
            found = [report.metrics for report in self._latest.values()]
            if any(name in metrics for metrics in found):
                table.add_row(name, *(format_metric(metrics, name) if name in metrics else "" for metrics in found))
        return table


def episode_text(episode: Episode, characters: int) -> Text:
    """An episode for the terminal: each writer in a colour, then how it ended."""
    text = Text()
    for message in episode.trajectories[0].messages if episode.trajectories else ():
        if message.role == "assistant":
            break
        _append(text, message.role, message.content, _STYLES["prompt"])
    for turn in episode.turns:
        for segment in turn.segments:
            _append(text, segment.origin, segment.text, _STYLES[segment.origin])
        inline = any(segment.origin == "tool" for segment in turn.segments)
        for record in turn.calls:
            failed = record.result.error is not None
            name = f"{record.call.name or '?'} {record.seconds:.2f} s{' ' + str(record.result.error) if failed else ''}"
            shown = "" if inline and not failed else record.result.text
            _append(text, name, shown, _STYLES["error" if failed else "tool"])
    text = _shorten(text, characters)
    end = f"── {episode.id}: {episode.stop_reason}, reward {format_number(episode.reward)}"
    text.append(visible(end if episode.failure is None else f"{end}, {episode.failure.message}"), "bold")
    return text


def _append(text: Text, writer: str, content: str, style: str) -> None:
    text.append(f"{visible(writer)} │ ", "bold " + style)
    text.append(visible(content).rstrip() + "\n", style)


def _shorten(text: Text, characters: int) -> Text:
    if len(text) <= characters:
        return text
    half = characters // 2
    return Text.assemble(text[:half], (f"\n… {len(text) - 2 * half} characters …\n", "dim"), text[-half:])
