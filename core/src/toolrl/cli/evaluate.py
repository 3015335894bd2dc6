"""`toolrl eval CONFIG|RUN`: samples episodes of the evaluation tasks and scores them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolrl.cli.common import add_run_arguments, as_overrides, names_run, read, run_job
from toolrl.cli.output import UsageError, table
from toolrl.cli.session import run_to_end
from toolrl.errors import ConfigError
from toolrl.loop.checkpoints import step_of
from toolrl.runs.formatting import ABLATION_NOTE, CONDITIONS, ablation_rows

if TYPE_CHECKING:
    from toolrl.assembly import Assembly

HELP = "evaluate a model, or a checkpoint of a run"
EXAMPLE = """toolrl eval grpo.yaml --set evaluation.tasks=50
  toolrl eval runs/first --set evaluation.temperature=0
  toolrl eval runs/first --checkpoint best
  toolrl eval --ablate runs/first"""

DATA = {"data.eval": True}
"""The data sets that it takes, and whether each has to be there."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, resume=False, config="a config file, or a run's folder, for its last checkpoint")
    parser.add_argument("--checkpoint", metavar="NAME", help="of a run: last (the default), best, or a step such as 30")
    ablated = "compare with no tools, with answers of calls on other tasks, and with tools that fail"
    parser.add_argument("--ablate", action="store_true", help=ablated)


def run(args: argparse.Namespace) -> int:
    from toolrl.runs.folder import RunFolder

    folder, args.named = Path(args.config), names_run(args.overrides)
    if not folder.exists():
        raise ConfigError(f"there is no file or folder {args.config!r}", hint="Give a config or a run's folder.")
    if folder.is_dir():
        RunFolder.open(folder)
        args.config = str(folder / "config.yaml")
        args.overrides = [*of_run(folder.absolute(), args.checkpoint), *args.overrides]
    elif args.checkpoint is not None:
        raise UsageError(
            "--checkpoint is for a run's folder, and this is a config",
            where=args.config,
            hint=f"Name it in the config: --set model.path=runs/NAME:{args.checkpoint}",
        )
    args.run_folder = folder.absolute() if folder.is_dir() else None
    args.suffix = suffix_of(ablate=args.ablate, checkpoint=args.checkpoint)
    return start(args)


def suffix_of(*, ablate: bool, checkpoint: str | None) -> str:
    """End of the name of an evaluation's run: `-eval`, `-ablate`, `-eval-best`, `-eval-step30`."""
    suffix = "-ablate" if ablate else "-eval"
    if checkpoint in (None, "last"):
        return suffix
    # A bare number would read as that of a second evaluation.
    return f"{suffix}-step{checkpoint}" if checkpoint.isdecimal() else f"{suffix}-{checkpoint}"


def start(args: argparse.Namespace) -> int:
    """With the config that `args` hold or name: the exit status."""
    return run_to_end(_evaluate(args))


def of_run(folder: Path, checkpoint: str | None) -> list[str]:
    """Evaluating a run gives a run beside it; the model is one of the run's checkpoints."""
    model = str(folder) if checkpoint is None else f"{folder}:{checkpoint}"
    return as_overrides({"model.path": model, "run.dir": str(folder.parent), "run.name": folder.name})


def _step(assembly: Assembly, run: Path | None) -> int:
    """Step of the checkpoint of `run` that is evaluated; 0 for another model."""
    source = Path(assembly.model_source).absolute()
    return step_of(source) if run is not None and source.parent == run / "checkpoints" else 0


async def _evaluate(args: argparse.Namespace) -> int:
    args.kind = "ablate" if args.ablate else "eval"
    loaded, registry = read(args, DATA)
    from toolrl.assembly import evaluate

    conditions = [*CONDITIONS] * args.ablate
    if conditions and loaded.config.cluster.rollout_workers:
        text = "--ablate changes the tools of this process, and rollout workers build their own"
        raise ConfigError(text, where="cluster.rollout_workers", hint="Add --set cluster.rollout_workers=0.")

    async def job(assembly: Assembly) -> dict[str, Any]:
        metrics = await evaluate(assembly, conditions, _step(assembly, args.run_folder))
        if args.json or not conditions:
            return metrics
        header, *rows = ablation_rows(metrics)
        print(table(rows, header=header))
        print(ABLATION_NOTE)
        return {}

    return await run_job(args, loaded, registry, job, data=DATA, workers=True)
