"""toolrl from Python: `train`, `evaluate` and `rollout` do what the commands `train`, `eval` and `rollout` do.

A config is a file, a run's folder, or a dict of the same form; sections given by keyword are merged into it. Components
may be Python objects, see `toolrl.python_objects`:

    run = toolrl.train("grpo.yaml", trainer={"steps": 50}, data={"train": [{"prompt": "2 + 2?", "answer": "4"}]})
    print(run.metrics_lines("eval")[-1].metrics["accuracy"])

Each returns the run's folder, opened for reading. All raise ToolrlError, and KeyboardInterrupt where Ctrl-C ended the
run, which is saved then. They may be called where an event loop runs, as in a notebook.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from toolrl.building import check_trainable
from toolrl.builtin.given_rows import is_dict_of_splits
from toolrl.cli import evaluate as evaluate_command
from toolrl.cli import rollout as rollout_command
from toolrl.cli import train as train_command
from toolrl.cli.common import name_run, place_of
from toolrl.cli.session import interrupt_thread
from toolrl.config.load import LoadedConfig, check_config
from toolrl.config.override import apply_overrides
from toolrl.config.read import read_config
from toolrl.errors import ConfigError
from toolrl.plugins.registry import Registry, load_registry
from toolrl.preflight import check_start, run_directory
from toolrl.python_objects import PLUGIN, take_objects
from toolrl.runs.folder import RunFolder
from toolrl.runs.names import check_there

ConfigSource = str | os.PathLike[str] | Mapping[str, Any]


def train(config: ConfigSource, *, resume: bool = False, overwrite: bool = False, **sections: Any) -> RunFolder:
    """Train, as `toolrl train`: with `resume` from its last checkpoint. `overwrite` deletes a run of this name."""
    loaded, registry = _load(config, (), sections)
    check_trainable(registry, loaded.config)
    if resume:
        check_there(run_directory(loaded.config).absolute())
    return _run(train_command.run, loaded, registry, resume=resume, overwrite=overwrite)


def evaluate(
    config: ConfigSource,
    *,
    checkpoint: str | None = None,
    ablate: bool = False,
    overwrite: bool = False,
    **sections: Any,
) -> RunFolder:
    """Evaluate on `data.eval`, as `toolrl eval`: the config's model, or of a run's folder the `checkpoint` (last, best
    or a step) in a run of its own beside it. `ablate` compares with what the tools give taken away."""
    of_run: list[str] = []
    run_folder = None
    if not isinstance(config, Mapping) and Path(config).is_dir():
        run_folder = Path(config).absolute()
        of_run = evaluate_command.of_run(run_folder, checkpoint)
    elif checkpoint is not None:
        raise ConfigError(f"checkpoint {checkpoint!r} is one of a run, and this is a config", hint="Give its folder.")
    loaded, registry = _load(config, of_run, sections)
    suffix = evaluate_command.suffix_of(ablate=ablate, checkpoint=checkpoint)
    args = argparse.Namespace(overwrite=overwrite, ablate=ablate, run_folder=run_folder, suffix=suffix)
    return _run_beside(evaluate_command.start, loaded, registry, args, evaluate_command.DATA, sections)


def rollout(
    config: ConfigSource, *, tasks: int = 8, episodes: int | None = None, overwrite: bool = False, **sections: Any
) -> RunFolder:
    """Sample `episodes` of each of the first `tasks` of `data.train`, as `toolrl rollout`; `algorithm.group_size` of
    each where `episodes` is None."""
    loaded, registry = _load(config, (), sections)
    args = argparse.Namespace(
        overwrite=overwrite, tasks=tasks, episodes=episodes, kind="rollout", suffix=rollout_command.SUFFIX
    )
    return _run_beside(rollout_command.run, loaded, registry, args, rollout_command.DATA, sections)


def _run_beside(
    command: Callable[[argparse.Namespace], int],
    loaded: LoadedConfig,
    registry: Registry,
    args: argparse.Namespace,
    data: Mapping[str, bool],
    sections: Mapping[str, Any],
) -> RunFolder:
    """Run a command whose run has a name of its own, unless the sections give one."""
    loaded = name_run(args, loaded, named="name" in sections.get("run", {}))
    check_start(loaded, registry, data, resume=None, overwrite=args.overwrite)
    return _run(command, loaded, registry, **vars(args))


def _load(config: ConfigSource, overrides: Sequence[str], sections: Mapping[str, Any]) -> tuple[LoadedConfig, Registry]:
    """The checked config with the sections merged in, and the plugins with its Python objects. Raises ConfigError."""
    problems: list[str] = []
    if isinstance(config, Mapping):
        tree, source = dict(config), "run"
    else:
        source, moved = os.fspath(config), []
        if Path(source).is_dir():
            source, moved = str(Path(source) / "config.yaml"), place_of(Path(source))
        tree, problems = read_config(source)
        problems += apply_overrides(tree, moved)[1]
    tree, registry = take_objects(_merged(tree, sections), load_registry())
    loaded = check_config(tree, overrides, source=source, registry=registry, problems=problems)
    cluster = loaded.config.cluster
    if registry.plugin(PLUGIN) is not None and (cluster.rollout_workers or cluster.trainer_workers):
        raise ConfigError(
            "cluster: the config holds Python objects, which other processes don't have",
            hint="Make a plugin of them (`toolrl new-plugin`), or leave rollout_workers and trainer_workers out.",
        )
    return loaded, registry


def _merged(tree: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with another one's values over it. What names a component is replaced as a whole."""
    merged = dict(tree)
    for key, value in over.items():
        below = merged.get(key)
        is_section = isinstance(value, Mapping) and "use" not in value and not is_dict_of_splits(value)
        if is_section and isinstance(below, Mapping):
            merged[key] = _merged(below, value)
        else:
            merged[key] = value
    return merged


def _run(
    command: Callable[[argparse.Namespace], int], loaded: LoadedConfig, registry: Registry, **arguments: Any
) -> RunFolder:
    args = argparse.Namespace(loaded=loaded, registry=registry, json=False, **arguments)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        status = command(args)
    else:
        status = _in_thread(command, args)
    if status:
        raise KeyboardInterrupt
    return RunFolder.open(getattr(args, "directory", run_directory(loaded.config)))


def _in_thread(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command beside the event loop of this thread, which waits."""
    thread: list[int] = []

    def run() -> int:
        thread.append(threading.get_ident())
        return command(args)

    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if in_main_thread:
        signal.signal(signal.SIGINT, lambda *_: interrupt_thread(thread[0] if thread else None))
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(run).result()
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, before)
