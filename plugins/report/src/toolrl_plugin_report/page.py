"""report.html: a run, or several beside each other, in one page that needs nothing else.

The page is built from three kinds of parts. What is read at once (status, headline numbers, tables, the config) is
written here as HTML with everything escaped. Curves and episodes travel as JSON in a script element of a type that no
browser runs, with `<`, `>` and `&` as escapes, and are drawn by the page's own script, which puts text into the page as
text only. A content security policy allows that one script by its hash and no connection at all, so that what a model
or a tool wrote can't run even where an escape were forgotten.

The script shows a list of rows and loads an episode when it is opened. A page on its own holds the rows and the
episodes of a sample; one that `toolrl report --serve` serves holds none, and gets both from the server. The rows of all
episodes are kept in `episodes/index/`, which may be deleted: it is made again from the episodes.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from toolrl import __version__
from toolrl.errors import DataError
from toolrl.runs.files import write_atomic
from toolrl.runs.folder import RunFolder
from toolrl.runs.metrics import MetricsLine
from toolrl_plugin_report import parts
from toolrl_plugin_report.charts import PARTS, layout
from toolrl_plugin_report.sample import EpisodeSample, Totals, sample_episodes, script_json, whole_characters
from toolrl_plugin_report.series import curves
from toolrl_plugin_report.view import COLUMNS

_log = logging.getLogger(__name__)

PAGE_BYTES = 8 << 20
"""Of episodes, as JSON."""

KEYS = "Keys: j next, k previous, / search."

_SCRIPTS = ("elements.js", "charts.js", "source.js", "rows.js", "timeline.js", "episode.js", "page.js")


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


def read_tokens(folder: RunFolder) -> dict[int, str]:
    """The texts of token ids; none where they can't be read, and turns are shown as text then."""
    try:
        return folder.tokens()
    except DataError as error:
        _log.warning("left out of the report: %s", error)
        return {}


def read_runs(folder: RunFolder, compare: Sequence[RunFolder]) -> list[parts.Run]:
    """The run of a report, then those that it is compared with, each with its metrics as they are now."""
    folders = [folder, *compare]
    names = _distinct_names(folders)
    return [parts.Run(run, name, run.summary(), run.metrics_lines()) for run, name in zip(folders, names, strict=True)]


def build_page(folder: RunFolder, compare: Sequence[RunFolder] = (), *, page_bytes: int = PAGE_BYTES) -> str:
    """The text of a page that needs nothing else."""
    runs = read_runs(folder, compare)
    sample = sample_episodes(folder, page_bytes=page_bytes)
    shown = {str(key): piece for key, piece in read_tokens(folder).items() if key in sample.token_ids}
    data = script_json(
        {**charts_data(runs), "columns": COLUMNS, "rows": sample.rows, "total": sample.total, "tokens": shown}
    )
    whole = f'{data[:-1]},"episodes":[{",".join(sample.items)}]}}'
    return render_page(runs, sample.totals, whole, _episodes_note(sample, folder))


def charts_data(runs: Sequence[parts.Run]) -> dict[str, Any]:
    """The curves of runs, and the charts that show them."""
    return {
        "runs": [{"name": run.name, "curves": curves(run.lines)} for run in runs],
        "sections": _sections([line for run in runs for line in run.lines]),
    }


def live_parts(runs: Sequence[parts.Run], totals: Totals) -> dict[str, str]:
    """What of the page changes while a run goes on: HTML by the id of its place."""
    run = runs[0]
    return {
        "banner": parts.banner(run.summary, run.folder),
        "facts": parts.facts(run.summary, run.folder),
        "tiles": parts.tiles(run.lines),
        "tables-results": parts.comparison(runs) + parts.metrics_table(runs) + parts.ablation(run.lines),
        "tables-rewards": parts.reward_table(totals),
        "tables-tools": parts.tool_table(totals),
        "log-lines": parts.log(run.folder),
    }


def render_page(runs: Sequence[parts.Run], totals: Totals, data: str, note: str, connect: str = "") -> str:
    """A page of these runs. `data` is what its script reads, as from `script_json`; `connect` a source of its content
    security policy that the script may load from."""
    script = "\n".join(asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    filled = {
        **live_parts(runs, totals),
        "title": escape(runs[0].name),
        "policy": policy + (f"; connect-src {connect}" if connect else ""),
        "style": asset("page.css"),
        "script": script,
        "data": data,
        "note": escape(note),
        "setup": parts.setup(runs[0].folder),
        "footer": escape(f"toolrl {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
    }
    # One pass: a part's text is never searched for marks of other parts.
    return whole_characters(re.sub(r"\{\{([\w-]+)\}\}", lambda match: filled[match[1]], asset("page.html")))


def asset(name: str) -> str:
    """Read a file of the page."""
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _sections(lines: Sequence[MetricsLine]) -> list[dict[str, Any]]:
    names = {name for line in lines for name in line.metrics}
    return [
        {
            "title": title,
            "part": PARTS.get(title, "results"),
            "charts": [{**asdict(chart), "metrics": metrics} for chart, metrics in charts],
        }
        for title, charts in layout(names)
    ]


def _distinct_names(runs: Sequence[RunFolder]) -> list[str]:
    """Folder names, with the parent's where two are alike."""
    names = [run.name for run in runs]
    return [f"{run.directory.parent.name}/{run.name}" if names.count(run.name) > 1 else run.name for run in runs]


def no_episodes(config: Mapping[str, Any]) -> str:
    """Why a run has no episodes."""
    saved = config.get("run", {})
    off = isinstance(saved, Mapping) and saved.get("save_episodes") is False
    return "The run didn't save its episodes (run.save_episodes is false)." if off else "No episodes are stored."


def _episodes_note(sample: EpisodeSample, folder: RunFolder) -> str:
    if not sample.total:
        return no_episodes(folder.config)
    if len(sample.items) == sample.total:
        return f"All {sample.total:,} episodes. {KEYS}"
    return (
        f"{len(sample.items):,} of {sample.total:,} episodes: newest steps first, then from all over the run; of each "
        f"step failed, best and worst ones and whole groups. `toolrl report RUN --serve` shows all. {KEYS}"
    )
