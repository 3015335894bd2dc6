"""A run in a notebook's output: its status, its last metrics, and links to what it left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from toolrl.errors import ToolrlError
from toolrl.runs.formatting import format_metric

if TYPE_CHECKING:
    from toolrl.runs.folder import RunFolder

SHOWN = ("accuracy", "reward/mean", "calls/mean")


def status(run: RunFolder) -> str:
    """Describe the run's status. Never raises: a folder that can't be read is described as such."""
    try:
        return describe(run.summary())
    except (ToolrlError, OSError) as error:
        return f"unreadable ({error.message if isinstance(error, ToolrlError) else error})"


def describe(summary: Mapping[str, Any]) -> str:
    """Describe a run's status and steps in a few words, from its summary."""
    if not summary:
        return "not started"
    unsaved = summary.get("unsaved_episodes")
    lost = f", {unsaved} episodes not saved" if unsaved else ""
    return f"{summary.get('status')}, {_work(summary)}{lost}"


def _work(summary: Mapping[str, Any]) -> str:
    """The steps of a run, or the episodes of one without steps."""
    if summary.get("total_steps") == 0:
        count = summary.get("episodes", 0)
        return "1 episode" if count == 1 else f"{count:,} episodes"
    return f"{summary.get('steps', 0)} of {summary.get('total_steps', '?')} steps"


def card(run: RunFolder) -> str:
    """Make the run's card as HTML. Names and texts of the run are escaped."""
    rows = [f"<tr><td>folder</td><td><code>{escape(_near(run.directory))}</code></td></tr>"]
    rows += (f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in _metrics(run))
    if run.report_path.is_file():
        near = _near(run.report_path)
        link = Path(near).as_uri() if Path(near).is_absolute() else quote(near)
        rows.append(f'<tr><td>report</td><td><a href="{escape(link)}" target="_blank">{escape(near)}</a></td></tr>')
    title = f"<b>{escape(run.name)}</b>: {escape(status(run))}"
    return f"<div>{title}<table>{''.join(rows)}</table></div>"


def _metrics(run: RunFolder) -> list[tuple[str, str]]:
    """The usual metrics of the last line of each kind; none where they can't be read."""
    try:
        last = {line.kind: line for line in run.metrics_lines()}
    except (ToolrlError, OSError):
        return []
    return [
        (f"{kind} {name}, step {line.step}", format_metric(line.metrics, name))
        for kind, line in last.items()
        for name in SHOWN
        if name in line.metrics
    ]


def _near(path: Path) -> str:
    """The path from the working folder, which a notebook's links start at; absolute where it is elsewhere."""
    here = Path.cwd()
    return os.fspath(path.relative_to(here)) if path.is_relative_to(here) else os.fspath(path)
