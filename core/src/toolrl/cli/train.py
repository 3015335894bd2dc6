"""`toolrl train CONFIG`: reinforcement learning."""

from __future__ import annotations

import argparse

from toolrl.cli.common import add_run_arguments, last_metrics, observers_for, print_result, read
from toolrl.cli.session import run_to_end

HELP = "train a model by reinforcement learning"
EXAMPLE = "toolrl train grpo.yaml --set trainer.steps=50 --set run.name=first"


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return run_to_end(_train(args))


async def _train(args: argparse.Namespace) -> int:
    loaded, registry = read(args)
    from toolrl.assembly import assemble
    from toolrl.jobs import train

    async with assemble(
        loaded,
        registry,
        total_steps=loaded.config.trainer.steps,
        data={"data.train": True, "data.eval": False},
        resume=args.resume,
        overwrite=args.overwrite,
        observers=observers_for(args, loaded),
        workers=True,
    ) as assembly:
        await train(assembly)
    print_result(args, assembly.folder, last_metrics(assembly.folder))
    return 0
