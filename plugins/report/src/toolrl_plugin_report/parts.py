"""The parts of a report that are plain HTML: what is read at once, with everything escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

import yaml

from toolrl.errors import DataError
from toolrl.runs.folder import RunFolder, config_text
from toolrl.runs.formatting import ABLATION_NOTE, ablation_rows, format_duration, format_number
from toolrl.runs.log import read_log
from toolrl.runs.metrics import MetricsLine
from toolrl_plugin_report.charts import Chart, layout
from toolrl_plugin_report.sample import Totals
from toolrl_plugin_report.series import Headline, headlines


@dataclass(frozen=True)
class Run:
    """A run as a report shows it."""

    folder: RunFolder
    name: str
    summary: Mapping[str, Any]
    lines: Sequence[MetricsLine]


LOG_BYTES = 100_000
"""Bytes of the run's log that the page shows."""

_BANNERS = {
    "running": ("live", "This run is still running. The page shows its state at {when}."),
    "interrupted": ("warn", "This run was interrupted; the page shows what it did until then."),
    "failed": ("bad", "This run failed; the page shows what it did until then."),
    "": ("warn", "This run has not started."),
}


def banner(summary: Mapping[str, Any], folder: RunFolder) -> str:
    """How the run ended, where it didn't finish."""
    status = str(summary.get("status", ""))
    if status == "finished":
        return ""
    style, text = _BANNERS.get(status, ("warn", f"Status: {status}."))
    text = text.replace("{when}", f"{datetime.now(UTC):%H:%M:%S} UTC")
    if summary.get("steps", 0) < folder.total_steps and status != "running":
        text += f" {summary.get('steps', 0)} of {folder.total_steps} steps were done."
    error = summary.get("error") or {}
    detail = f"<pre>{escape(error['type'])}: {escape(error['message'])}</pre>" if error.get("message") else ""
    return f'<div class="banner {style}" role="status"><p>{escape(text)}</p>{detail}</div>'


def facts(summary: Mapping[str, Any], folder: RunFolder) -> str:
    """Status, size and model in one line."""
    model = folder.config.get("model")
    said = [
        str(summary.get("status", "not started")),
        f"{summary.get('steps', 0)} of {folder.total_steps} steps" if folder.total_steps else "",
        f"{summary.get('episodes', 0):,} episodes",
        format_duration(float(summary.get("seconds", 0.0))),
        f"model {model['path']}" if isinstance(model, Mapping) and "path" in model else "",
        f"started {summary['started'].replace('T', ' ').replace('+00:00', ' UTC')}" if "started" in summary else "",
        f"resumed at step {', '.join(map(str, summary['resumed_at']))}" if summary.get("resumed_at") else "",
    ]
    return "".join(f"<li>{escape(fact)}</li>" for fact in said if fact)


def tiles(lines: Sequence[MetricsLine]) -> str:
    """The headline numbers."""
    found = headlines(lines)
    if lines and all(headline.count == 1 for headline in found):
        return ""  # The table of metrics says all of it.
    return "".join(map(_tile, found)) or '<p class="empty">No step has been reported yet.</p>'


def _tile(headline: Headline) -> str:
    over = "evaluations" if headline.kind == "eval" else f"{headline.kind} steps"
    note = (
        f"first and last of the {over}"
        if headline.width == 1
        else f"means of the first and last {headline.width} {over}"
    )
    start, end, best = _numbers(headline)
    return (
        f'<div class="tile"><h2>{escape(headline.title)}</h2>'
        f'<p class="big"><span class="from">{escape(start)} → </span>{escape(end)}</p>'
        f'<p class="note">{escape(note)}; highest {escape(best)} at step {headline.best_step}</p></div>'
    )


def _numbers(headline: Headline) -> list[str]:
    """The start, the end and the best."""
    shown = [_number(value, headline.unit) for value in (headline.start, headline.end, headline.best)]
    shown[1] += _error(headline.errors, "", headline.unit)
    return shown


def _error(metrics: Mapping[str, float], name: str, unit: str) -> str:
    """A metric's confidence interval, or else its standard error; empty if it has neither."""
    low, high = (metrics.get(f"{name}/interval/{end}") for end in ("low", "high"))
    if low is not None and high is not None:
        return f" [{_number(low, unit)}, {_number(high, unit)}]"
    error = metrics.get(f"{name}/stderr")
    return "" if error is None else f" ± {_number(error, unit)}"


def comparison(runs: Sequence[Run]) -> str:
    """The headline numbers of several runs; nothing for one."""
    if len(runs) < 2:
        return ""
    per_run = [{headline.title: headline for headline in headlines(run.lines)} for run in runs]
    titles = list(dict.fromkeys(title for found in per_run for title in found))
    rows = []
    for index, (run, found) in enumerate(zip(runs, per_run, strict=True)):
        cells = [_way(found[title]) if title in found else "–" for title in titles]
        cells += [str(run.summary.get("steps", 0)), format_duration(float(run.summary.get("seconds", 0.0)))]
        rows.append((f'<i class="swatch run-{index % 8}"></i>{escape(run.name)}', map(escape, cells)))
    return table("Comparison", "", ["Run", *titles, "Steps", "Wall time"], rows)


def _way(headline: Headline) -> str:
    start, end, best = _numbers(headline)
    return end if headline.count == 1 else f"{start} → {end} (highest {best})"


def metrics_table(runs: Sequence[Run]) -> str:
    """The metrics of kinds with one report, such as an evaluation's: no curve can show them. Each with its standard
    error where it has one."""
    columns: list[tuple[str, Mapping[str, float]]] = []
    for run in runs:
        for kind in dict.fromkeys(line.kind for line in run.lines):
            of_kind = [line for line in run.lines if line.kind == kind]
            if len(of_kind) == 1:
                columns.append((f"{run.name} · {kind}" if len(runs) > 1 else kind, of_kind[0].metrics))
    if not columns:
        return ""
    sections: list[tuple[str, list[str]]] = []
    more: list[tuple[str, list[str]]] = []
    for section, charts in layout(name for _, metrics in columns for name in metrics):
        rows = [_metric_row(chart, name, columns) for chart, names in charts for name in names]
        into = sections if section in ("Results", "Environments", "Tools", "Length and end") else more
        into += rows
    head = ["metric", *(title for title, _ in columns), "meaning"]
    errors = any(name.endswith("/stderr") for _, metrics in columns for name in metrics)
    note = "[]: 95 % interval, ±: standard error, both clustered by task." if errors else ""
    folded = f"<details><summary>{len(more)} other metrics</summary>{table('', '', head, more, 'metrics')}</details>"
    return f"<section>{table('Metrics', note, head, sections, 'metrics')}{folded if more else ''}</section>"


def _metric_row(chart: Chart, name: str, columns: Sequence[tuple[str, Mapping[str, float]]]) -> tuple[str, list[str]]:
    cells = []
    for _, metrics in columns:
        value = _number(metrics[name], chart.unit) + _error(metrics, name, chart.unit) if name in metrics else "–"
        cells.append(escape(value))
    title = escape(chart.title if chart.metrics == (name,) else name)
    return f'<span title="{escape(name)}">{title}</span>', [*cells, f'<span class="note">{escape(chart.note)}</span>']


def _number(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.1f}\u00a0%"
    return format_number(value) + (" s" if unit == "seconds" else "")


def table(
    title: str, note: str, head: Sequence[str], rows: Iterable[tuple[str, Iterable[str]]], style: str = ""
) -> str:
    """Build a section with one table. Cells of `rows` are HTML, the first of each a heading; `head` is text. Each cell
    knows its column's name, which stands beside it where a screen is narrow."""
    lines = []
    for first, cells in rows:
        marked = (f'<td data-label="{escape(name)}">{cell}</td>' for name, cell in zip(head[1:], cells, strict=True))
        lines.append(f"<tr><th>{first}</th>{''.join(marked)}</tr>")
    said = (f"<h2>{escape(title)}</h2>" if title else "") + (f"<p class='note'>{escape(note)}</p>" if note else "")
    return (
        f"<section>{said}<div class='scroll'>"
        f"<table class='{style}'><thead><tr>{''.join(f'<th>{escape(text)}</th>' for text in head)}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def ablation(lines: Sequence[MetricsLine]) -> str:
    """The conditions of `toolrl eval --ablate` beside each other; nothing for a run without."""
    metrics = lines[-1].metrics if lines else {}
    if not any(name.startswith("ablation/") for name in metrics):
        return ""
    (_, *header), *rows = ablation_rows(metrics)
    cells = [(escape(row[0]), map(escape, row[1:])) for row in rows]
    return table("Does the tool help?", ABLATION_NOTE, ["condition", *header], cells)


def reward_table(totals: Totals) -> str:
    """The rewards of all episodes read, by source and turn."""
    if not totals.rewards:
        return ""
    turns = sorted({turn for _, turn in totals.rewards if turn is not None})[:12]
    columns: list[int | None] = [None, *turns]
    rows = []
    for source in sorted({source for source, _ in totals.rewards}):
        sums = (totals.rewards.get((source, turn)) for turn in columns)
        cells = [
            f"<span title='{of[0]:.0f} entries'>{format_number(of[1] / of[0])}</span>" if of else "" for of in sums
        ]
        rows.append((escape(source), cells))
    head = ["source", "whole", *(f"turn {turn + 1}" for turn in turns)]
    note = f"Mean of weight · value over {totals.episodes:,} episodes read."
    return table("Rewards by source and turn", note, head, rows)


def tool_table(totals: Totals) -> str:
    """The calls of all episodes read, by tool."""
    if not totals.tools:
        return ""
    rows = []
    for name, counts in sorted(totals.tools.items(), key=lambda item: -item[1]["calls"])[:40]:
        calls = counts["calls"]
        errors = Counter({key[6:]: count for key, count in counts.items() if key.startswith("error:")})
        listed = ", ".join(f"{kind} {count}" for kind, count in errors.most_common())
        took = f"{counts['milliseconds'] / calls:.0f} ms"
        rows.append((escape(name), [f"{calls:,}", f"{100 * (1 - errors.total() / calls):.1f} %", took, escape(listed)]))
    head = ["tool", "calls", "success", "mean time", "errors"]
    return table("Calls by tool", f"Over {totals.episodes:,} episodes read.", head, rows)


def log(folder: RunFolder) -> str:
    """The end of the run's log; nothing if it is empty or can't be read."""
    try:
        text = read_log(folder.directory, LOG_BYTES)
    except (OSError, DataError):
        text = ""
    lines = [_log_line(line) for line in text.splitlines()]
    return f'<pre class="log" tabindex="0">{chr(10).join(lines)}</pre>' if lines else ""


def _log_line(line: str) -> str:
    level = line.split(" ", 2)[1:2]
    style = {"WARNING": "warn", "ERROR": "bad", "CRITICAL": "bad"}.get(level[0] if level else "")
    return f'<span class="{style}">{escape(line)}</span>' if style and line[:1].isdigit() else escape(line)


def setup(folder: RunFolder) -> str:
    """The config and the versions."""
    versions = yaml.safe_dump(folder.versions(), sort_keys=False)
    return (
        f"<details><summary>Config</summary><pre>{escape(config_text(folder.config))}</pre></details>"
        f"<details><summary>Versions</summary><pre>{escape(versions)}</pre></details>"
    )
