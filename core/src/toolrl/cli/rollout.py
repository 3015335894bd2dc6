"""`toolrl rollout CONFIG`: episodes of the training tasks, without training."""

from __future__ import annotations

import argparse
from functools import partial

from toolrl.cli.common import add_run_arguments, at_least_one, read, run_job
from toolrl.cli.session import run_to_end

HELP = "sample episodes without training"
EXAMPLE = "toolrl rollout grpo.yaml --tasks 16 --episodes 4"

DATA = {"data.train": True}
"""The data sets that it takes, and whether each has to be there."""
SUFFIX = "-rollout"
"""End of the name of its run."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, resume=False)
    parser.set_defaults(kind="rollout", suffix=SUFFIX)
    parser.add_argument(
        "--tasks",
        type=at_least_one,
        default=8,
        help="how many tasks of data.train (default 8); a smaller data set is cycled",
    )
    parser.add_argument("--episodes", type=at_least_one, help="episodes of each task (default algorithm.group_size)")


def run(args: argparse.Namespace) -> int:
    return run_to_end(_rollout(args))


async def _rollout(args: argparse.Namespace) -> int:
    loaded, registry = read(args, DATA)
    from toolrl.assembly import sample

    episodes = args.episodes or loaded.config.algorithm.group_size
    job = partial(sample, tasks=args.tasks, episodes=episodes)
    return await run_job(args, loaded, registry, job, data=DATA, workers=True)
