"""The page that lists the runs of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toolrl.errors import DataError
from toolrl.runs.folder import RunFolder, is_run_folder
from toolrl.runs.formatting import format_duration, format_metric
from toolrl_plugin_report.page import asset
from toolrl_plugin_report.parts import table

DEPTH = 3
"""Levels of folders that are searched for runs."""
MOST_RUNS = 2000
_HEAD = ["run", "state", "steps", "accuracy", "reward", "time", "started"]


def find_runs(root: Path) -> dict[str, Path]:
    """Find the runs below a folder: their paths by their names, which are relative to it. Links aren't followed."""
    found: dict[str, Path] = {}
    for path in _folders(root, DEPTH):
        if len(found) < MOST_RUNS:
            found[path.relative_to(root).as_posix()] = path
    return found


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    try:
        children = sorted(it.name for it in os.scandir(folder) if it.is_dir(follow_symlinks=False))
    except OSError:
        return
    for child in (folder / name for name in children if not name.startswith(".")):
        if is_run_folder(child):
            yield child
        elif depth > 1:
            yield from _folders(child, depth - 1)


def runs_page(root: Path) -> str:
    """Build the page: the runs, newest first."""
    described = [_describe(name, path) for name, path in find_runs(root).items()]
    rows = [row for _, row in sorted(described, key=lambda it: it[0], reverse=True)]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    title = escape(root.name or str(root))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} – toolrl</title>
<style>
{asset("page.css")}
</style>
</head>
<body>
<header><div class="name"><span class="brand">toolrl</span><h1>{title}</h1></div></header>
<main>{table("Runs", "Newest first.", _HEAD, rows)}</main>
</body>
</html>
"""


def _describe(name: str, path: Path) -> tuple[str, tuple[str, list[str]]]:
    """When a run started, and its row."""
    link = f'<a href="runs/{quote(name)}/">{escape(name)}</a>'
    try:
        run = RunFolder.open(path)
        summary: dict[str, Any] = run.summary()
        metrics = {line.kind: line.metrics for line in run.metrics_lines()}
    except DataError:
        return "", (link, ["unreadable", *[""] * (len(_HEAD) - 2)])
    last = next((metrics[kind] for kind in ("eval", "train", "rollout") if kind in metrics), {})
    started = str(summary.get("started", ""))
    cells = [
        str(summary.get("status", "not started")),
        f"{summary.get('steps', 0):,} of {run.total_steps:,}" if run.total_steps else "",
        *(format_metric(last, name) if name in last else "" for name in ("accuracy", "reward/mean")),
        format_duration(float(summary.get("seconds", 0.0))),
        started[:16].replace("T", " "),
    ]
    return started, (link, [escape(cell) for cell in cells])
