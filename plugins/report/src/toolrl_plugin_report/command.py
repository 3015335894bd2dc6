"""The command `toolrl report`: writes the report of a run, in whatever state it is.

The report is written when a run ends. This command writes it anew: of a killed or running run, to
another place, or with the curves of other runs over its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from toolrl.cli.output import UsageError, print_json
from toolrl.protocols import Command
from toolrl.runs.folder import RunFolder, describe_run
from toolrl_plugin_report.page import write_report


class ReportCommand(Command):
    """`toolrl report RUN`."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/grpo")
        parser.add_argument(
            "--compare",
            nargs="+",
            action="extend",
            default=[],
            type=Path,
            metavar="RUN",
            help="other runs, whose curves are drawn over this run's; the episodes are of RUN alone",
        )
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="where to write; report.html in the run's folder by default"
        )
        parser.add_argument("--json", action="store_true", help="print where the report is and the summary as JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Write the page and print where it is."""
        if args.output is not None and args.output.is_dir():
            raise UsageError("--output is a folder", where=str(args.output), hint="Name a file: --output report.html")
        folder = RunFolder.open(args.run)
        others = [RunFolder.open(path) for path in args.compare]
        path = write_report(folder, args.output, compare=others).absolute()
        if args.json:
            facts = {"report": path, "bytes": path.stat().st_size, "run": folder.directory, "summary": folder.summary()}
            print_json({**facts, "compared": [other.directory for other in others]})
            return 0
        print(f"{folder.name}: {describe_run(folder.directory)}")
        print(path)
        return 0
