"""`toolrl eval CONFIG|RUN`: episodes of the evaluation tasks and what they come to."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolrl.cli.common import add_run_arguments, observers_for, print_result, read
from toolrl.cli.session import run_to_end

HELP = "evaluate a model, or the last checkpoint of a run"
EXAMPLE = "toolrl eval grpo.yaml --set evaluation.tasks=50\n  toolrl eval runs/first --set evaluation.temperature=0"


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, resume=False)


def run(args: argparse.Namespace) -> int:
    folder = Path(args.config)
    if folder.is_dir():
        # Evaluating a run gives a run of its own, beside it; the model is the run's last checkpoint.
        args.config = str(folder / "config.yaml")
        args.overrides = [f"model.path={folder}", f"run.name={folder.name}-eval", *args.overrides]
    return run_to_end(_evaluate(args))


async def _evaluate(args: argparse.Namespace) -> int:
    loaded, registry = read(args)
    from toolrl.assembly import assemble
    from toolrl.jobs import evaluate

    async with assemble(
        loaded, registry, total_steps=1, overwrite=args.overwrite, observers=observers_for(args, loaded)
    ) as assembly:
        facts = await evaluate(assembly)
    print_result(args, assembly.folder, facts)
    return 0
