"""`toolrl export RUN FOLDER`: a run's model as a folder that needs neither toolrl nor peft."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolrl.cli.output import UsageError, print_json
from toolrl.protocols import Command


class Export(Command):
    """The command."""

    example = """toolrl export runs/first model
  toolrl export runs/first model --checkpoint best"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "source", metavar="RUN", help="a run's folder, for its last checkpoint, or a folder with an adapter"
        )
        parser.add_argument(
            "folder", type=Path, metavar="FOLDER", help="where to write; it must not be there, or be empty"
        )
        parser.add_argument(
            "--checkpoint", metavar="NAME", help="of a run: last (the default), best, or a step such as 30"
        )
        parser.add_argument(
            "--trust-remote-code",
            action="store_true",
            help="run code that the folder of an adapter's model brings along",
        )
        parser.add_argument("--json", action="store_true", help="print what was written as JSON")

    def run(self, args: argparse.Namespace) -> int:
        if args.folder.exists() and (not args.folder.is_dir() or any(args.folder.iterdir())):
            raise UsageError("there is something here already", where=str(args.folder), hint="Name another folder.")
        from toolrl.assembly import model_source
        from toolrl.runs.folder import RunFolder

        name = args.source
        if args.checkpoint is not None:
            RunFolder.open(name)  # its error lists the runs nearby
            name = f"{name}:{args.checkpoint}"
        source = model_source(name, where=None)
        from toolrl_plugin_torch.checkpoints.export import export_model

        export_model(source, args.folder, trust_remote_code=args.trust_remote_code)
        written = sum(file.stat().st_size for file in args.folder.iterdir())
        facts = {"model": str(args.folder.absolute()), "from": source, "bytes": written}
        if args.json:
            print_json(facts)
        else:
            print(f"{args.folder}: {written / 2**20:,.1f} MiB, from {source}")
        return 0
