"""`toolrl export RUN FOLDER`: a run's model as a folder that needs neither toolrl nor peft, and on the Hub."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from toolrl.cli.output import UsageError, print_json
from toolrl.protocols import Command


class Export(Command):
    """The command."""

    example = """toolrl export runs/first model
  toolrl export runs/first model --checkpoint best
  toolrl export runs/first --push ORG/NAME --private"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "source", metavar="RUN", help="a run's folder, for its last checkpoint, or a folder with an adapter"
        )
        parser.add_argument(
            "folder",
            type=Path,
            nargs="?",
            metavar="FOLDER",
            help="where to write; it must not be there, or be empty. Not needed with --push",
        )
        parser.add_argument(
            "--checkpoint", metavar="NAME", help="of a run: last (the default), best, or a step such as 30"
        )
        parser.add_argument("--adapter", action="store_true", help="write a LoRA adapter alone, not merged in")
        parser.add_argument(
            "--base-model",
            metavar="ORG/NAME",
            help="the Hub's name of the model that training began with, where model.path is a local folder",
        )
        parser.add_argument(
            "--trust-remote-code",
            action="store_true",
            help="run code that the folder of an adapter's model brings along",
        )
        parser.add_argument(
            "--push",
            metavar="ORG/NAME",
            help="upload model and model card to this repository of the Hugging Face Hub, with the token of "
            "`hf auth login` or HF_TOKEN. As with transformers and TRL a new one is public, unless its organisation "
            "says otherwise",
        )
        parser.add_argument("--private", action="store_true", help="with --push: make a private repository")
        parser.add_argument("--overwrite", action="store_true", help="with --push: replace the files of a repository")
        parser.add_argument("--json", action="store_true", help="print what was written as JSON")

    def run(self, args: argparse.Namespace) -> int:
        _check(args)
        from huggingface_hub.constants import ENDPOINT

        from toolrl.assembly import model_source
        from toolrl.runs.folder import RunFolder
        from toolrl_plugin_torch.publishing.model_card import Export as Exported
        from toolrl_plugin_torch.publishing.model_card import hub_base, model_card, run_of

        name = args.source
        if args.checkpoint is not None:
            RunFolder.open(name)  # its error lists the runs nearby
            name = f"{name}:{args.checkpoint}"
        source, run = model_source(name, where=None), run_of(name)
        if run is None and args.push is not None:
            raise UsageError(
                f"{name!r} is no run, and --push makes the model card from one", hint="Give a run's folder."
            )
        base = args.base_model or hub_base(source)
        adapter_of = _adapter_base(args, source, base) if args.adapter else None
        from toolrl_plugin_torch.checkpoints.export import export_model
        from toolrl_plugin_torch.publishing.push import open_repository, push_folder

        repository = None
        if args.push is not None:  # Before the model is written.
            repository = open_repository(args.push, private=args.private, overwrite=args.overwrite)

        with contextlib.ExitStack() as stack:
            folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
            export_model(source, folder, trust_remote_code=args.trust_remote_code, adapter_of=adapter_of)
            if run is not None:
                exported = Exported(run, Path(source), folder, base)
                model_card(exported, repository or run.name).save(folder / "README.md")
            written = sum(file.stat().st_size for file in folder.iterdir())
            facts = {"model": str(folder.absolute()), "from": source, "bytes": written}
            if repository is not None:
                facts["private"] = push_folder(folder, repository, f"{Path(source).name} of {run.name}, by toolrl")
                facts["url"] = f"{ENDPOINT}/{repository}"
            if args.folder is None:
                del facts["model"]
        _print(args, facts)
        return 0


def _check(args: argparse.Namespace) -> None:
    folder = args.folder
    if folder is None and args.push is None:
        raise UsageError("neither FOLDER nor --push was given", hint="Say where to write the model.")
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError("there is something here already", where=str(folder), hint="Name another folder.")
    if args.push is None and (args.private or args.overwrite):
        raise UsageError("--private and --overwrite belong to --push ORG/NAME")


def _adapter_base(args: argparse.Namespace, source: str, base: str | None) -> str:
    """The model that an adapter names as its own."""
    from toolrl_plugin_torch.adapters.lora import adapter_base

    found = adapter_base(source)
    if found is None:
        raise UsageError(f"--adapter: {source!r} holds a whole model", hint="Leave --adapter out.")
    if args.push is not None and base is None:
        hint = "Name the Hub's model by --base-model ORG/NAME, or leave --adapter out, which merges the adapter."
        raise UsageError(f"--adapter: others can't load {found!r}, which the adapter was trained on", hint=hint)
    return base or found


def _print(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    if args.json:
        print_json(facts)
        return
    print(f"{args.folder or args.push}: {facts['bytes'] / 2**20:,.1f} MiB, from {facts['from']}")
    if "url" in facts:
        print(f"{facts['url']} ({'private' if facts['private'] else 'public'})")
