"""`toolrl train CONFIG`: reinforcement learning in one process, in those of torchrun, or on a cluster's workers."""

from __future__ import annotations

import argparse
import logging
import os
from typing import TYPE_CHECKING

from toolrl.cli.common import add_run_arguments, announce, last_metrics, observers_for, print_result, read
from toolrl.cli.session import run_to_end
from toolrl.errors import ToolrlError

if TYPE_CHECKING:
    from toolrl.config.load import LoadedConfig
    from toolrl.loop.ranks import Ranks
    from toolrl.plugins.registry import Registry

HELP = "train a model by reinforcement learning"
EXAMPLE = """toolrl train grpo.yaml --set trainer.steps=50 --set run.name=first
  toolrl train runs/first --resume
  toolrl train grpo.yaml --resume-if-exists
  torchrun --nproc-per-node 4 -m toolrl train grpo.yaml"""

_DATA = {"data.train": True, "data.eval": False}
"""The data sets that it takes, and whether each has to be there."""
KIND = "train"
_ALONE = 300.0
"""Seconds that ranks wait for each other where the config with `rank_timeout` can't be read."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.set_defaults(trains=True, kind=KIND)


def run(args: argparse.Namespace) -> int:
    from toolrl.building import trainer_component
    from toolrl.loop.ranks import ONE, OtherRankError, started_by_torchrun
    from toolrl.preflight import check_start

    if not started_by_torchrun():
        loaded, registry = read(args)
        if loaded.config.cluster.trainer_workers:
            return _run_on_workers(args, loaded, registry)
        check_start(loaded, registry, _DATA, resume=args.resume, overwrite=args.overwrite, kind=KIND)
        ranks = ONE
        if loaded.config.cluster.shard is True:
            ranks = (
                trainer_component(registry, loaded.config.trainer.use)
                .load()
                .join(loaded.config.device, loaded.config.cluster.rank_timeout)
            )
        main, interrupt = _train(args, loaded, registry, ranks), ranks.interrupt if ranks.distributed else None
        return run_to_end(main, interrupt=interrupt, silent=_silent(args))
    try:
        return _run_as_rank(args)
    except OtherRankError:
        if int(os.environ["RANK"]):
            return 1  # The rank that failed reports why, and the first rank repeats it.
        raise


def _run_on_workers(args: argparse.Namespace, loaded: LoadedConfig, registry: Registry) -> int:
    """A cluster places the processes that train and supervises them."""
    from toolrl.config.remarks import check_ranks
    from toolrl.preflight import build_cluster, run_directory
    from toolrl.runs.folder import RunFolder

    config = loaded.config
    check_ranks(config, config.cluster.trainer_workers > 1 or config.cluster.shard is True)
    RunFolder.check(run_directory(config), resume=args.resume, overwrite=args.overwrite, kind=KIND)
    cluster = build_cluster(registry, config, "cluster.trainer_workers")
    if not args.json:
        print(f"starting {config.cluster.trainer_workers} trainer workers", flush=True)
    return run_to_end(cluster.train(loaded, resume=args.resume, overwrite=args.overwrite, json=args.json))


def _run_as_rank(args: argparse.Namespace) -> int:
    """This process is one of several."""
    from toolrl.building import trainer_component
    from toolrl.plugins.registry import load_registry
    from toolrl.preflight import check_start

    loaded, registry, problem = None, None, None
    try:
        loaded, registry = read(args)
        if not int(os.environ["RANK"]):
            check_start(loaded, registry, _DATA, resume=args.resume, overwrite=args.overwrite, kind=KIND)
    except ToolrlError as error:
        problem = error
    config = loaded.config if loaded is not None else None
    device, timeout = (config.device, config.cluster.rank_timeout) if config else ("cpu", _ALONE)
    trainer = trainer_component(registry or load_registry(), config.trainer.use if config else "torch")
    ranks = trainer.load().join(device, timeout, problem)
    assert loaded is not None, "join raises the problem"
    assert registry is not None
    if not ranks.first:
        # One rank reports what all would report alike.
        logging.getLogger("toolrl").setLevel(logging.ERROR)
    with ranks.explaining():
        main = _train(args, loaded, registry, ranks)
        return run_to_end(main, interrupt=ranks.interrupt, silent=not ranks.first or _silent(args))


def _silent(args: argparse.Namespace) -> bool:
    """Whether the command that started this process reports an interrupt."""
    return getattr(args, "silent", False) is True


async def _train(args: argparse.Namespace, loaded: LoadedConfig, registry: Registry, ranks: Ranks) -> int:
    if ranks.first:
        announce(args, loaded)
    from toolrl.assembly import assemble, train
    from toolrl.config.remarks import check_ranks

    check_ranks(loaded.config, ranks.distributed)
    async with assemble(
        loaded,
        registry,
        total_steps=loaded.config.trainer.steps,
        data=_DATA,
        resume=args.resume,
        overwrite=args.overwrite,
        observers=observers_for(args, loaded),
        ranks=ranks,
        workers=True,
        kind=KIND,
    ) as assembly:
        await train(assembly)
    if ranks.first:
        print_result(args, assembly.folder, last_metrics(assembly.folder))
    ranks.leave()
    return 0
