"""What the examples' scripts have in common: stages that are commands, and what a run came to.

Each stage is printed as a command that can be run by hand, and run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def say(title: str, arguments: Sequence[str], more: str = "") -> None:
    """Print a stage: what it is for, and its command."""
    print(f"\n== {title}\n   python {' '.join(arguments)}{more}", flush=True)


def stage(title: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run Python with some arguments; stop with its exit status where it fails."""
    say(title, arguments)
    status = subprocess.run([sys.executable, *arguments], env=environment).returncode
    if status:
        raise SystemExit(status)


def toolrl(command: str, config: Path, values: Mapping[str, Any], *flags: str) -> list[str]:
    """The arguments of `toolrl COMMAND CONFIG --set …`. None leaves a value as the config has it."""
    sets = [word for key, value in values.items() if value is not None for word in ("--set", f"{key}={value}")]
    return ["-m", "toolrl", command, str(config), *flags, *sets]


@contextmanager
def served(title: str, arguments: Sequence[str], ready: str) -> Iterator[str]:
    """A server in a process of its own for as long as the block lasts. Gives its address: the last word of the first
    line that it prints, which has to hold `ready`."""
    say(title, arguments)
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline() if server.stdout is not None else ""
            if ready not in line:
                raise SystemExit(f"{title}: the server didn't start")
            yield line.split()[-1]
        finally:
            server.terminate()


def evaluations(run: Path) -> list[dict[str, Any]]:
    """The evaluations of a run, in order of step."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return sorted((line for line in lines if line["kind"] == "eval"), key=lambda line: line["step"])


def show(run: Path, what: str, columns: Mapping[str, tuple[str, str]]) -> None:
    """Print a run's first and last evaluation of `what`, and where its report is. `columns`: by metric, the title and
    how a number is written."""
    found = evaluations(run)
    print(f"\n{what:24}" + "".join(f"{title:>16}" for title, _ in columns.values()))
    for title, line in (("before GRPO", found[0]), ("after GRPO", found[-1])):
        print(f"{title:24}" + "".join(f"{line[key]:>16{form}}" for key, (_, form) in columns.items()))
    print(f"\nReport: {run / 'report.html'}")


ACCURACY = {"accuracy": ("accuracy", ".1%"), "reward/mean": ("reward", ".2f")}
"""Columns of `show`."""
