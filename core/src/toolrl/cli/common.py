"""Arguments and steps shared by the commands that start a run."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolrl.cli.output import print_json
from toolrl.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from toolrl.assembly import Assembly
    from toolrl.config.frame import ComponentUse
    from toolrl.config.load import LoadedConfig
    from toolrl.plugins.registry import Registry
    from toolrl.runs.folder import RunFolder


DEBUG = "TOOLRL_DEBUG"
PLUGIN_COMMANDS = {
    "init": ("start", "write a config that runs, for a model, data and tools"),
    "doctor": ("start", "check that what is installed works here"),
    "runs": ("start", "list runs, or compare some: configs and metrics side by side"),
    "completion": ("start", "print a script that completes commands in bash, zsh or fish"),
    "plan": ("torch", "compute whether a run fits its GPUs, without loading a model"),
    "sft": ("torch", "fine-tune on demonstrations, or on the good episodes of a run"),
    "export": ("torch", "write a run's model as a folder for other programs"),
}
"""Commands of plugins that `toolrl --help` lists, which imports no plugin: each with its plugin and its one line."""


def command_parser(name: str, help_line: str, example: str = "") -> argparse.ArgumentParser:
    """The argument parser of a command, before the command adds its own arguments."""
    parser = argparse.ArgumentParser(
        prog=f"toolrl {name}",
        description=f"{help_line[:1].upper()}{help_line[1:]}.".replace("..", "."),
        epilog=f"example:\n  {example}" if example else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",
    )
    parser.add_argument("--debug", action="store_true", help=f"show the traceback of an error (also {DEBUG}=1)")
    return parser


def add_run_arguments(
    parser: argparse.ArgumentParser, *, resume: bool = True, config: str = "a config file, or a run's folder"
) -> None:
    """CONFIG, --set, --resume, --resume-if-exists, --overwrite, --json. `config` is what CONFIG may be."""
    parser.add_argument("config", metavar="CONFIG|RUN", help=config)
    add_set_argument(parser)
    group = parser.add_mutually_exclusive_group()
    if resume:
        group.add_argument("--resume", action="store_true", help="continue from the run's last checkpoint")
        always = "continue the run if it is there, else start it: for schedulers that always give the same command"
        group.add_argument("--resume-if-exists", action="store_true", help=always)
    group.add_argument("--overwrite", action="store_true", help="delete a run of this name and start anew")
    parser.add_argument(
        "--json", action="store_true", help="print the run's summary as JSON, and nothing else, on stdout"
    )


def at_least_one(text: str) -> int:
    """A number that an argument counts something by."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def add_set_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="PATH=VALUE",
        help="override a value of the config",
    )


def read(args: argparse.Namespace, data: Mapping[str, bool] | None = None) -> tuple[LoadedConfig, Registry]:
    """The config, or that of a run's folder, and the plugins. Raises ConfigError with every mistake.

    With `data`, for a command that starts a run (the data sets that it takes, and whether each has to be there), also
    ToolrlError for all that can be found out before torch is imported.

    From here on `args.hide` takes the values of the config's environment variables out of what is printed of errors.
    """
    from pathlib import Path

    from toolrl.config.load import load_config
    from toolrl.plugins.registry import load_registry
    from toolrl.runs.files import names_objects

    registry: Registry = getattr(args, "registry", None) or load_registry()
    if getattr(args, "loaded", None) is not None:  # Read and checked already, in the process that started this one.
        args.hide = args.loaded.hide
        return args.loaded, registry
    source, overrides = args.config, args.overrides
    kind = getattr(args, "kind", None)
    if Path(source).is_dir():
        source, overrides = str(Path(source) / "config.yaml"), [*place_of(Path(source)), *overrides]
    try:
        loaded = load_config(source, overrides, registry=registry)
    except ConfigError as error:
        if Path(source).name == "config.yaml" and names_objects(Path(source).parent):
            error.hint = "This run's config names Python objects: call toolrl.train or toolrl.evaluate with them again."
            raise
        hint = " ".join(filter(None, (error.hint, _absent_plugins(Path(source).parent, registry))))
        raise ConfigError(error.problems, where=error.where, hint=hint or None) from error
    args.hide = loaded.hide
    if getattr(args, "trains", False):
        from toolrl.building import check_trainable

        check_trainable(registry, loaded.config)
    loaded = name_run(args, loaded, named=getattr(args, "named", names_run(args.overrides)))
    settle_resume(args, loaded)
    if data is not None:
        from toolrl.preflight import check_start

        check_start(loaded, registry, data, resume=getattr(args, "resume", None), overwrite=args.overwrite, kind=kind)
    return loaded, registry


def _absent_plugins(folder: Path, registry: Registry) -> str:
    """Plugins that a run was made with and that aren't installed, as a hint; empty for a folder that is no run's."""
    from toolrl.runs.folder import RunFolder, is_run_folder

    if not is_run_folder(folder):
        return ""
    plugins = RunFolder.open(folder).versions().get("plugins")
    known = plugins if isinstance(plugins, dict) else {}
    absent = [f"{name} {version}" for name, version in known.items() if registry.plugin(name) is None]
    return f"The run was made with plugins that aren't installed here: {', '.join(absent)}." if absent else ""


def name_run(args: argparse.Namespace, loaded: LoadedConfig, *, named: bool) -> LoadedConfig:
    """The config with a name of its own for the run of a command that doesn't train (`args.suffix`), unless the user
    gave one (`named`). The name is free now; `run_job` reserves it."""
    suffix = getattr(args, "suffix", None)
    if suffix is None or named:
        return loaded
    from pathlib import Path

    from toolrl.runs.names import free_name

    run = loaded.config.run
    ends_so = f"-{run.name}".endswith(suffix)  # A config for evaluations alone may have the name `eval`.
    base = run.name if ends_so else f"{run.name}{suffix}"
    if args.overwrite:
        return renamed(loaded, base)
    args.base = base
    return renamed(loaded, free_name(Path(run.dir), base))


def names_run(overrides: Sequence[str]) -> bool:
    """Whether the user's overrides give the run's name."""
    return any(text.partition("=")[0].strip() == "run.name" for text in overrides)


def renamed(loaded: LoadedConfig, name: str) -> LoadedConfig:
    """The config of a run of another name."""
    import dataclasses

    config = loaded.config.model_copy(update={"run": loaded.config.run.model_copy(update={"name": name})})
    resolved = {**loaded.resolved, "run": {**loaded.resolved["run"], "name": name}}
    return dataclasses.replace(loaded, config=config, resolved=resolved)


def settle_resume(args: argparse.Namespace, loaded: LoadedConfig) -> None:
    """Turn --resume-if-exists into `args.resume`. Raises ToolrlError where --resume has no run to continue."""
    from toolrl.preflight import run_directory
    from toolrl.runs.folder import is_run_folder
    from toolrl.runs.names import check_there

    directory = run_directory(loaded.config)
    if getattr(args, "resume_if_exists", False):
        args.resume = is_run_folder(directory)
    elif getattr(args, "resume", None):
        check_there(directory.absolute())


def place_of(folder: Path) -> list[str]:
    """Overrides that make a moved run's config name its present folder. Raises DataError where it is no run's."""
    from pathlib import Path

    from toolrl.runs.folder import RunFolder

    run = RunFolder.open(folder).config.get("run")
    place = run if isinstance(run, dict) else {}
    if (Path(str(place.get("dir"))) / str(place.get("name"))).absolute() == folder.absolute():
        return []
    return as_overrides({"run.dir": str(folder.absolute().parent), "run.name": folder.absolute().name})


def as_overrides(values: Mapping[str, str]) -> list[str]:
    """`PATH=VALUE` texts, as --set takes them."""
    import json  # JSON is YAML too: a folder's name may hold what YAML reads in its own way.

    return [f"{path}={json.dumps(value)}" for path, value in values.items()]


async def run_job(
    args: argparse.Namespace,
    loaded: LoadedConfig,
    registry: Registry,
    job: Callable[[Assembly], Awaitable[dict[str, Any]]],
    *,
    data: Mapping[str, bool],
    total_steps: int = 0,
    resume: bool | None = None,
    workers: bool = False,
) -> int:
    """Assemble a run, do one job with it and print the result; the exit status. Other arguments are `assemble`'s."""
    from pathlib import Path

    from toolrl.runs.names import reserved

    async with contextlib.AsyncExitStack() as stack:
        lock = None
        if getattr(args, "base", None) is not None:  # Another command may have taken the name since it was chosen.
            name, lock = stack.enter_context(reserved(Path(loaded.config.run.dir), args.base))
            loaded = renamed(loaded, name)
        announce(args, loaded)
        from toolrl.assembly import assemble

        starting = assemble(
            loaded,
            registry,
            total_steps=total_steps,
            data=data,
            resume=resume,
            overwrite=args.overwrite,
            observers=observers_for(args, loaded),
            workers=workers,
            kind=getattr(args, "kind", None),
            lock=lock,
        )
        assembly = await stack.enter_async_context(starting)
        facts = await job(assembly)
    args.directory = assembly.folder.directory
    print_result(args, assembly.folder, facts)
    return 0


def observers_for(args: argparse.Namespace, loaded: LoadedConfig) -> Sequence[ComponentUse]:
    """The config's observers; with --json those that would write to stdout are left out."""
    return [use for use in loaded.config.observers if not (args.json and _writes_to_stdout(use))]


def _writes_to_stdout(use: ComponentUse) -> bool:
    name = use.use.rpartition("/")[2]
    return name == "console" or (name == "jsonl" and use.options.get("path", "-") == "-")


def announce(args: argparse.Namespace, loaded: LoadedConfig) -> None:
    """Say for the observer `console` what the first seconds pass with: it is built when the model is loaded."""
    if any(use.use.rpartition("/")[2] == "console" for use in observers_for(args, loaded)):
        trainer = loaded.config.trainer
        loads = trainer.use == type(trainer).model_fields["use"].default  # With others it may be on a server.
        what = "loading the model" if loads else "starting with the model"
        print(what, loaded.hide(loaded.config.model.path), flush=True)


def last_metrics(folder: RunFolder) -> dict[str, Any]:
    """The steps that were done, and reward and accuracy of the last of each kind."""
    facts: dict[str, Any] = {}
    for kind, names in (("train", ("reward/mean", "accuracy")), ("eval", ("accuracy", "calls/mean"))):
        lines = folder.metrics_lines(kind)
        if lines:
            facts["steps"] = lines[-1].step
            facts |= {f"{kind} {name}": lines[-1].metrics[name] for name in names if name in lines[-1].metrics}
    return facts


def print_result(args: argparse.Namespace, folder: RunFolder, facts: dict[str, Any]) -> None:
    """Prints the result of a finished command, unless an observer `console` has shown it, or the caller gets the run's
    folder."""
    if getattr(args, "registry", None) is not None:
        return
    report = {"report": str(folder.report_path)} if folder.report_path.is_file() else {}
    facts = {"run": str(folder.directory), **report, **facts}
    if args.json:
        print_json(facts)
        return
    from toolrl.plugins.registry import load_registry
    from toolrl.runs.formatting import format_metric, measured

    consoles = [use["use"] for use in folder.config["observers"] if use["use"].rpartition("/")[2] == "console"]
    if any(not load_registry().get("observers", name).component.fallback for name in consoles):
        return
    width = max(20, *map(len, facts))
    for name, value in facts.items():
        if measured(name) == name:
            print(f"{name:>{width}}  {format_metric(facts, name) if isinstance(value, float) else value}")
