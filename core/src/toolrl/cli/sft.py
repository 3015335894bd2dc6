"""`toolrl sft CONFIG`: a cold start by supervised fine-tuning."""

from __future__ import annotations

import argparse

from toolrl.cli.common import add_run_arguments, observers_for, print_result, read
from toolrl.cli.session import run_to_end
from toolrl.errors import ConfigError

HELP = "fine-tune on demonstrations, or on the good episodes of a run"
EXAMPLE = "toolrl sft warmup.yaml --set sft.steps=200"


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return run_to_end(_sft(args))


async def _sft(args: argparse.Namespace) -> int:
    loaded, registry = read(args)
    settings = loaded.config.sft
    if settings is None:
        raise ConfigError(
            "sft: missing, so there is nothing to fine-tune on",
            where=args.config,
            hint="Add `sft: {data: …}` or `sft: {from_run: runs/NAME}`.",
        )
    from toolrl.preflight import check_fine_tuning, check_start

    data = {"sft.data": settings.data is not None, "data.eval": False}
    check_fine_tuning(loaded.config, settings, overwrite=args.overwrite)
    check_start(loaded, registry, data, resume=args.resume, overwrite=args.overwrite)
    from toolrl.assembly import assemble
    from toolrl.jobs import fine_tune

    async with assemble(
        loaded,
        registry,
        total_steps=settings.steps,
        data=data,
        resume=args.resume,
        overwrite=args.overwrite,
        observers=observers_for(args, loaded),
    ) as assembly:
        facts = await fine_tune(assembly, settings)
    print_result(args, assembly.folder, facts)
    return 0
