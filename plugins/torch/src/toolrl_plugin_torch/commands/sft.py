"""`toolrl sft CONFIG`: a cold start by supervised fine-tuning."""

from __future__ import annotations

import argparse
from functools import partial

from toolrl.cli.common import add_run_arguments, read, run_job
from toolrl.cli.session import run_to_end
from toolrl.config.model import Config
from toolrl.errors import ConfigError
from toolrl.protocols import Command
from toolrl_plugin_torch.options import SftConfig, check_trainer


class Sft(Command):
    """The command."""

    example = "toolrl sft warmup.yaml --set sft.steps=200"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_arguments(parser)
        parser.set_defaults(trains=True, kind="sft")

    def run(self, args: argparse.Namespace) -> int:
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
    check_trainer(loaded.config, "sft")
    from toolrl.preflight import check_start

    data = {"sft.data": settings.data is not None, "data.eval": False}
    check_fine_tuning(loaded.config, settings, overwrite=args.overwrite)
    check_start(loaded, registry, data, resume=args.resume, overwrite=args.overwrite, kind="sft")
    from toolrl_plugin_torch.fine_tuning.loop import fine_tune

    job = partial(fine_tune, settings=settings)
    return await run_job(args, loaded, registry, job, data=data, total_steps=settings.steps, resume=args.resume)


def check_fine_tuning(config: Config, settings: SftConfig, *, overwrite: bool = False) -> None:
    """Find out before a model is loaded what fine-tuning lacks. Raises ConfigError, DataError for a run that isn't
    there; with `overwrite` also for one that would be deleted before it is read."""
    if settings.probe is not None and config.data.eval is None:
        raise ConfigError(
            "sft.probe: needs tasks to probe on, and data.eval names none", hint="Add data.eval or leave sft.probe out."
        )
    if settings.from_run is None:
        return
    from toolrl.preflight import run_directory
    from toolrl.runs.folder import RunFolder

    source = RunFolder.open(settings.from_run)
    if overwrite and source.directory.resolve() == run_directory(config).resolve():
        raise ConfigError(
            f"sft.from_run: {settings.from_run!r} is the run that --overwrite deletes",
            hint="Give the new run another name by --set run.name=NAME.",
        )
