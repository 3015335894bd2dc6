"""The command `toolrl audit`: what is wrong in the rollouts of a run."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from toolrl.cli.output import UsageError, print_json, table
from toolrl.errors import DataError
from toolrl.protocols import Command
from toolrl.terminal_text import visible
from toolrl_plugin_audit.audit import CHECKS, Audit, Report
from toolrl_plugin_audit.formats.open import LOOKED_FOR, open_dump
from toolrl_plugin_audit.formats.toolrl_run import ToolrlRun


class AuditCommand(Command):
    """`toolrl audit PATH`. Exit status 1 where it found something."""

    example = "toolrl audit runs/grpo\ntoolrl audit outputs/rollouts --json"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        parser.add_argument(
            "path",
            type=Path,
            metavar="PATH",
            help="a run folder of toolrl's, or a file or folder of rollouts of verl, TRL or prime-rl",
        )
        parser.add_argument(
            "--max-staleness",
            type=int,
            metavar="N",
            help="versions between the weights that sampled and those that are trained, at most; rollout.max_staleness "
            "of a run of toolrl's, 8 for others",
        )
        parser.add_argument(
            "--tools", nargs="+", metavar="NAME", help="tools that were offered, where the rollouts don't say so"
        )
        parser.add_argument("--json", action="store_true", help="print checks and findings as JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Audit, and print the findings."""
        if args.max_staleness is not None and args.max_staleness < 0:
            raise UsageError("--max-staleness is negative", hint="0 allows no rollouts of older weights.")
        report = audit(args.path, args.max_staleness, tuple(args.tools) if args.tools else None)
        if args.json:
            print_json(asdict(report))
        else:
            print(visible(as_text(report)))
        return 1 if report.findings else 0


def audit(path: Path, max_staleness: int | None = None, tools: tuple[str, ...] | None = None) -> Report:
    """The audit of what is at a path. Raises DataError where it holds no rollouts that can be read."""
    dump, notes = open_dump(path, tools)
    oldest = dump.max_staleness if max_staleness is None else max_staleness
    guessed = max_staleness is None and not isinstance(dump, ToolrlRun)
    auditor = Audit(oldest, guessed=guessed)
    for file in dump.files():
        place = "the first rollout of a file"
        try:
            for row in file:
                place = row.place
                auditor.add(row)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise DataError(
                f"a rollout isn't what {dump.name} hold: {type(error).__name__}: {error}",
                where=f"{path}: {place}, or the one after it",
                hint="A value has another type than the format gives it: delete the rollout to continue without it.",
            ) from error
        auditor.end_file()
    report = auditor.finish(str(path), dump.name, notes)
    if not report.rows:
        raise DataError("there are no rollouts in these files", where=str(path), hint=LOOKED_FOR)
    return report


def as_text(report: Report) -> str:
    """A report for a reader: the checks, then each finding with examples and advice."""
    said = f"{report.path}: {report.format}, {_count(report.rows, 'rollout')} in {_count(report.files, 'file')}"
    wrong = {finding.check for finding in report.findings}
    rows = []
    for name, result in report.checks.items():
        mark = "FOUND" if name in wrong else "ok" if result.rows else "-"
        said_of = f"{result.rows} of {report.rows}" if mark != "-" else ""
        remark = CHECKS[name] if mark != "-" else f"Not checked: {result.not_run}"
        if mark != "-" and result.not_run:
            remark += f" (the rest: {result.not_run})"
        rows.append((name, mark, said_of, remark))
    lines = [said, "", table(rows, header=("CHECK", "RESULT", "ROLLOUTS", ""))]
    for finding in report.findings:
        lines += ["", f"{finding.check}: {finding.problem} ({finding.count}×)"]
        lines += [f"  {example['place']}: {example['text']}" for example in finding.examples]
        lines += [f"  → {finding.advice}"]
    lines += ["", *report.notes] if report.notes else []
    verdict = "Nothing found." if not report.findings else f"{_count(len(report.findings), 'finding')}."
    if idle := [name for name, result in report.checks.items() if not result.rows]:
        verdict += f" Not checked: {', '.join(idle)}."
    return "\n".join([*lines, "", verdict])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
