"""The command `toolrl report`: writes the report of a run, in whatever state it is.

The report is written when a run ends. This command writes it anew: of a killed or running run, to
another place, or with the curves of other runs over its own. With `--serve` it serves the page instead, with every
episode of the run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from toolrl.cli.output import SystemCallError, UsageError, print_json
from toolrl.protocols import Command
from toolrl.runs.folder import RunFolder, describe_run, is_run_folder
from toolrl.runs.names import newest_run
from toolrl_plugin_report.overview import find_runs
from toolrl_plugin_report.page import write_report


class ReportCommand(Command):
    """`toolrl report RUN`."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        parser.add_argument(
            "run",
            nargs="?",
            type=Path,
            metavar="RUN",
            help="a run folder, by default the newest run in the folder runs; with --serve also a folder of runs",
        )
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
        parser.add_argument(
            "--serve",
            action="store_true",
            help="serve the page with all episodes of the run, live while it goes on, until Ctrl-C; nothing is written",
        )
        parser.add_argument(
            "--host",
            default="127.0.0.1",
            help="with --serve: address to listen on; anyone who connects can read the run (default: %(default)s)",
        )
        parser.add_argument(
            "--port", type=_port, default=7580, help="with --serve: 0 for any that is free (default: %(default)s)"
        )
        parser.add_argument("--json", action="store_true", help="print where the report is and the summary as JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Write the page and print where it is."""
        if args.output is not None and args.output.is_dir():
            raise UsageError("--output is a folder", where=str(args.output), hint="Name a file: --output report.html")
        args.run = args.run or newest_run()
        if not is_run_folder(args.run) and args.run.is_dir() and find_runs(args.run):
            return _serve_folder(args)
        folder = RunFolder.open(args.run)
        others = [RunFolder.open(path) for path in args.compare]
        if args.serve:
            if args.output is not None or args.json:
                raise UsageError("--serve writes nothing", hint="Leave out --output and --json.")
            from toolrl_plugin_report.serve import ServedRun, serve

            serve(ServedRun(folder, others), args.host, args.port, lambda url: _announce(folder, url))
            return 0
        try:
            path = write_report(folder, args.output, compare=others).absolute()
        except OSError as error:
            if args.output is not None:
                raise
            hint = "Write the report to another place: --output FILE, or look at it without a file: --serve."
            raise SystemCallError(
                error.strerror or str(error), where=str(error.filename or folder.directory), hint=hint
            ) from error
        if args.json:
            facts = {"report": path, "bytes": path.stat().st_size, "run": folder.directory, "summary": folder.summary()}
            print_json({**facts, "compared": [other.directory for other in others]})
            return 0
        print(f"{folder.name}: {describe_run(folder.directory)}")
        print(path)
        return 0


def _serve_folder(args: argparse.Namespace) -> int:
    """Serve the list of a folder's runs, and each of them."""
    if not args.serve:
        hint = f"Name one of them, or list them in a browser: toolrl report {args.run} --serve"
        raise UsageError("this is a folder of runs", where=str(args.run), hint=hint)
    if args.output is not None or args.json or args.compare:
        raise UsageError("a folder of runs is only served", hint="Leave out --output, --json and --compare.")
    from toolrl_plugin_report.serve import ServedFolder, serve

    def announce(url: str) -> None:
        print(f"{args.run}: {len(find_runs(args.run))} runs")
        print(f"{url}  (Ctrl-C ends)", flush=True)

    serve(ServedFolder(args.run.absolute()), args.host, args.port, announce)
    return 0


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{number} is no port: expected 0 to 65535")
    return number


def _announce(folder: RunFolder, url: str) -> None:
    print(f"{folder.name}: {describe_run(folder.directory)}")
    print(f"{url}  (Ctrl-C ends)", flush=True)
