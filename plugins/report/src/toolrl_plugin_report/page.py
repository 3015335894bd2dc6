"""report.html: a run, or several beside each other, in one page that needs nothing else.

The page is built from three kinds of parts. What is read at once (status, headline numbers, tables, the config) is
written here as HTML with everything escaped. Curves and episodes travel as JSON in a script element of a type that no
browser runs, with `<`, `>` and `&` as escapes, and are drawn by the page's own script, which puts text into the page as
text only. A content security policy allows that one script by its hash and no connection at all, so that what a model
or a tool wrote can't run even where an escape were forgotten.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from toolrl import __version__
from toolrl.errors import DataError
from toolrl.runs.files import write_atomic
from toolrl.runs.folder import RunFolder, config_text
from toolrl.runs.formatting import ABLATION_NOTE, ablation_rows, format_duration, format_number
from toolrl.runs.metrics import MetricsLine
from toolrl_plugin_report.charts import layout
from toolrl_plugin_report.sample import EpisodeSample, Totals, sample_episodes, script_json, whole_characters
from toolrl_plugin_report.series import Headline, curves, headlines, stages

_log = logging.getLogger(__name__)

PAGE_BYTES = 8 << 20
"""Of episodes, as JSON."""

_SCRIPTS = ("charts.js", "episodes.js", "page.js")


def write_report(
    folder: RunFolder,
    output: Path | None = None,
    *,
    compare: Sequence[RunFolder] = (),
    page_bytes: int = PAGE_BYTES,
) -> Path:
    """Write a run's report, into its folder where `output` is None; curves of other runs are drawn over its own.

    Works for a run in any state: running, interrupted, failed, without a single step. Raises DataError where a file of
    the run can't be read; episodes and the texts of tokens are left out then, with a warning.
    """
    path = output or folder.report_path
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, build_page(folder, compare, page_bytes=page_bytes), durable=False)
    return path


def _tokens(folder: RunFolder) -> dict[int, str]:
    """The texts of token ids; none where they can't be read, and turns are shown as text then."""
    try:
        return folder.tokens()
    except DataError as error:
        _log.warning("left out of the report: %s", error)
        return {}


def build_page(folder: RunFolder, compare: Sequence[RunFolder] = (), *, page_bytes: int = PAGE_BYTES) -> str:
    """The page's text."""
    runs = [(run, run.summary(), run.metrics_lines()) for run in (folder, *compare)]
    names = _distinct_names([run for run, *_ in runs])
    sample = sample_episodes(folder, page_bytes=page_bytes)
    data = {
        "runs": [{"name": name, "curves": curves(lines)} for name, (_, _, lines) in zip(names, runs, strict=True)],
        "sections": _sections([line for _, _, lines in runs for line in lines]),
        "tokens": {str(key): piece for key, piece in _tokens(folder).items() if key in sample.token_ids},
    }
    summary = runs[0][1]
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    parts = {
        "title": escape(names[0]),
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        "style": _asset("page.css"),
        "script": script,
        "data": _data_json(data, sample.items),
        "banner": _banner(summary, folder),
        "facts": _facts(summary, folder),
        "tiles": _tiles(runs[0][2], summary),
        "comparison": _comparison(names, runs) if compare else "",
        "episodes_note": escape(_episodes_note(sample, folder)),
        "tables": _ablation(runs[0][2]) + _tables(sample.totals),
        "setup": _setup(folder),
        "footer": escape(f"toolrl {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
    }
    # One pass: a part's text is never searched for marks of other parts.
    return whole_characters(re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html")))


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _data_json(data: Mapping[str, Any], episodes: Sequence[str]) -> str:
    return f'{script_json(data)[:-1]},"episodes":[{",".join(episodes)}]}}'


def _sections(lines: Sequence[MetricsLine]) -> list[dict[str, Any]]:
    names = {name for line in lines for name in line.metrics}
    return [
        {"title": title, "charts": [{**asdict(chart), "metrics": metrics} for chart, metrics in charts]}
        for title, charts in layout(names)
    ]


def _distinct_names(runs: Sequence[RunFolder]) -> list[str]:
    """Folder names, with the parent's where two are alike."""
    names = [run.name for run in runs]
    return [f"{run.directory.parent.name}/{run.name}" if names.count(run.name) > 1 else run.name for run in runs]


# The parts that are plain HTML.

_BANNERS = {
    "running": ("live", "This run is still running. The page shows its state at {when}."),
    "interrupted": ("warn", "This run was interrupted; the page shows what it did until then."),
    "failed": ("bad", "This run failed; the page shows what it did until then."),
    "": ("warn", "This run has not started."),
}


def _banner(summary: Mapping[str, Any], folder: RunFolder) -> str:
    status = str(summary.get("status", ""))
    if status == "finished":
        return ""
    style, text = _BANNERS.get(status, ("warn", f"Status: {status}."))
    text = text.format(when=f"{datetime.now(UTC):%H:%M:%S} UTC")
    if summary.get("steps", 0) < folder.total_steps and status != "running":
        text += f" {summary.get('steps', 0)} of {folder.total_steps} steps were done."
    error = summary.get("error") or {}
    detail = f"<pre>{escape(error['type'])}: {escape(error['message'])}</pre>" if error.get("message") else ""
    return f'<div class="banner {style}" role="status"><p>{escape(text)}</p>{detail}</div>'


def _facts(summary: Mapping[str, Any], folder: RunFolder) -> str:
    model = folder.config.get("model")
    facts = [
        str(summary.get("status", "not started")),
        f"{summary.get('steps', 0)} of {folder.total_steps} steps" if folder.total_steps else "",
        f"{summary.get('episodes', 0)} episodes",
        format_duration(float(summary.get("seconds", 0.0))),
        f"model {model['path']}" if isinstance(model, Mapping) and "path" in model else "",
        f"started {summary['started'].replace('T', ' ').replace('+00:00', ' UTC')}" if "started" in summary else "",
        f"resumed at step {', '.join(map(str, summary['resumed_at']))}" if summary.get("resumed_at") else "",
    ]
    return "".join(f"<li>{escape(fact)}</li>" for fact in facts if fact)


def _tiles(lines: Sequence[MetricsLine], summary: Mapping[str, Any]) -> str:
    tiles = [_tile(headline) for headline in headlines(lines)]
    seconds = float(summary.get("seconds", 0.0))
    spent = stages(lines, seconds)
    whole = sum(took for _, took in spent)
    if whole > 0:
        bars = legend = ""
        for index, (stage, took) in enumerate(spent):
            width, name = f"{100 * took / whole:.2f}%", escape(stage)
            bars += f'<i class="stage-{index % 6}" style="width:{width}" title="{name}"></i>'
            legend += f'<li><i class="stage-{index % 6}"></i>{name} {escape(format_duration(took))}</li>'
        all_of_it = escape(format_duration(max(seconds, whole)))
        tiles.append(
            f'<div class="tile wide"><h3>Wall time</h3><p class="big">{all_of_it}</p>'
            f'<div class="stages">{bars}</div><ul class="legend">{legend}</ul></div>'
        )
    return "".join(tiles) or '<p class="empty">No step has been reported yet.</p>'


def _tile(headline: Headline) -> str:
    over = "evaluations" if headline.kind == "eval" else f"{headline.kind} steps"
    note = (
        f"first and last of the {over}"
        if headline.width == 1
        else f"means of the first and last {headline.width} {over}"
    )
    start, end, best = _numbers(headline)
    return (
        f'<div class="tile"><h3>{escape(headline.title)}</h3>'
        f'<p class="big"><span class="from">{escape(start)} → </span>{escape(end)}</p>'
        f'<p class="note">{escape(note)}; highest {escape(best)} at step {headline.best_step}</p></div>'
    )


def _numbers(headline: Headline) -> list[str]:
    """The start, the end and the best."""
    shares = headline.unit == "share"
    values = (headline.start, headline.end, headline.best)
    shown = [f"{100 * value:.1f}\u00a0%" if shares else format_number(value) for value in values]
    if headline.error is not None:
        shown[1] += f" ± {100 * headline.error:.1f}\u00a0%" if shares else f" ± {format_number(headline.error)}"
    return shown


def _comparison(names: Sequence[str], runs: Sequence[tuple[RunFolder, Mapping[str, Any], list[MetricsLine]]]) -> str:
    per_run = [{headline.title: headline for headline in headlines(lines)} for *_, lines in runs]
    titles = list(dict.fromkeys(title for found in per_run for title in found))
    rows = []
    for index, (name, found, (_, summary, _)) in enumerate(zip(names, per_run, runs, strict=True)):
        shown = (_numbers(found[title]) if title in found else None for title in titles)
        cells = [f"{of[0]} → {of[1]} (highest {of[2]})" if of else "–" for of in shown]
        cells += [str(summary.get("steps", 0)), format_duration(float(summary.get("seconds", 0.0)))]
        rows.append((f'<i class="swatch run-{index % 8}"></i>{escape(name)}', map(escape, cells)))
    return _table("Comparison", "", ["Run", *titles, "Steps", "Wall time"], rows)


def _table(title: str, note: str, head: Sequence[str], rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    """A section with one table. Cells of `rows` are HTML, the first of each a heading; `head` is text."""
    lines = [f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for first, cells in rows]
    said = f"<p class='note'>{escape(note)}</p>" if note else ""
    return (
        f"<section><h2>{title}</h2>{said}<div class='scroll'>"
        f"<table><thead><tr>{''.join(f'<th>{escape(text)}</th>' for text in head)}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _episodes_note(sample: EpisodeSample, folder: RunFolder) -> str:
    if not sample.total:
        saved = folder.config.get("run", {})
        off = isinstance(saved, Mapping) and saved.get("save_episodes") is False
        return "The run didn't save its episodes (run.save_episodes is false)." if off else "No episodes are stored."
    if len(sample.items) == sample.total:
        return f"All {sample.total} episodes."
    return (
        f"{len(sample.items)} of {sample.total} episodes: newest steps first, then from all over the run; of each step "
        "failed, best and worst ones and whole groups."
    )


def _ablation(lines: Sequence[MetricsLine]) -> str:
    metrics = lines[-1].metrics if lines else {}
    if not any(name.startswith("ablation/") for name in metrics):
        return ""
    header, *rows = ablation_rows(metrics)
    cells = [(row[0], map(escape, row[1:])) for row in rows]
    return f'<div class="tables">{_table("Does the tool help?", ABLATION_NOTE, header, cells)}</div>'


def _tables(totals: Totals) -> str:
    sections = (_reward_table(totals) if totals.rewards else "") + (_tool_table(totals) if totals.tools else "")
    return f'<div class="tables">{sections}</div>' if sections else ""


def _reward_table(totals: Totals) -> str:
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
    note = f"Mean of weight · value over {totals.episodes} episodes read."
    return _table("Rewards by source and turn", note, head, rows)


def _tool_table(totals: Totals) -> str:
    rows = []
    for name, counts in sorted(totals.tools.items(), key=lambda item: -item[1]["calls"])[:40]:
        calls = counts["calls"]
        errors = Counter({key[6:]: count for key, count in counts.items() if key.startswith("error:")})
        listed = ", ".join(f"{kind} {count}" for kind, count in errors.most_common())
        took = f"{counts['milliseconds'] / calls:.0f} ms"
        rows.append((escape(name), [str(calls), f"{100 * (1 - errors.total() / calls):.1f} %", took, escape(listed)]))
    head = ["tool", "calls", "success", "mean time", "errors"]
    return _table("Tools", f"Over {totals.episodes} episodes read.", head, rows)


def _setup(folder: RunFolder) -> str:
    versions = yaml.safe_dump(folder.versions(), sort_keys=False)
    return (
        f"<details><summary>Config</summary><pre>{escape(config_text(folder.config))}</pre></details>"
        f"<details><summary>Versions</summary><pre>{escape(versions)}</pre></details>"
    )
