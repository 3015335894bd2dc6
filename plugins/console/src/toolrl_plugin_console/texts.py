"""Texts for the console: lines of metrics, sparklines, sampled episodes.

Control characters of models and tools are made visible, so that they can't steer the terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rich.text import Text

from toolrl.runs.formatting import format_metric, format_number
from toolrl.terminal_text import visible
from toolrl.types import Episode

_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {"prompt": "dim", "model": "green", "tool": "yellow", "call": "cyan", "error": "bold red"}


def is_remarkable(name: str, value: float) -> bool:
    """Whether a metric is worth its place. Only counts that are usually 0 are left out at 0: a 0 may be the news."""
    return value != 0 or not name.startswith(("errors/count", "truncated", "usage/"))


def metrics_line(head: str, metrics: Mapping[str, float], names: Iterable[str], tail: str, width: int | None) -> Text:
    """`head`, the metrics that are there by name, and `tail`; as many as fit into `width` cells, all where it is
    None."""
    parts = [
        Text.assemble((f"  {name} ", "dim"), format_metric(metrics, name))
        for name in names
        if name in metrics and is_remarkable(name, metrics[name])
    ]
    line = Text(head, "bold", no_wrap=True)
    for part in [*parts, Text(f"  {tail}", "dim")] if tail else parts:
        if width is None or line.cell_len + part.cell_len <= width:
            line = Text.assemble(line, part, no_wrap=True)
    return line


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as bars from the lowest to the highest, averaged where there are more than `width`; those that aren't
    finite are left out."""
    finite = [value for value in values if math.isfinite(value)]
    count = min(len(finite), width)
    edges = [len(finite) * index // count for index in range(count + 1)] if count else []
    means = [fmean(finite[start:end]) for start, end in pairwise(edges)]
    low, span = min(means, default=0.0), max(means, default=0.0) - min(means, default=0.0)
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1)) if span else 0] for value in means)


def shown_path(path: Path) -> str:
    """The path from the current folder, where it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def episode_text(episode: Episode, characters: int) -> Text:
    """An episode: each writer in a colour, then how it ended."""
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
