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
from typing import Any, Unpack

from toolrl.building import check_trainable
from toolrl.builtin.given_rows import is_dict_of_splits
from toolrl.cli import evaluate as evaluate_command
from toolrl.cli import rollout as rollout_command
from toolrl.cli import train as train_command
from toolrl.cli.common import DEBUG, name_run, place_of
from toolrl.cli.session import interrupt_thread
from toolrl.config.load import LoadedConfig, check_config
from toolrl.config.override import apply_overrides
from toolrl.config.read import read_config
from toolrl.config.typed import ConfigSections
from toolrl.errors import ConfigError, ToolrlError
from toolrl.plugins.info import PYTHON_OBJECTS
from toolrl.plugins.registry import Registry, load_registry
from toolrl.preflight import check_start, run_directory
from toolrl.python_objects import take_objects
from toolrl.runs.folder import RunFolder
from toolrl.runs.names import check_there

ConfigSource = str | os.PathLike[str] | ConfigSections | Mapping[str, Any]
"""A config file, a run's folder, or the sections of a config."""


def train(
    config: ConfigSource, *, resume: bool = False, overwrite: bool = False, **sections: Unpack[ConfigSections]
) -> RunFolder:
    """Train a model by reinforcement learning, as `toolrl train` does.

        run = toolrl.train("grpo.yaml", trainer={"steps": 50}, environments={"default": {"rewards": [exact]}})

    Args:
        config: a config file, a run's folder, or a dict of the same form. Tools, rewards, data sets and other
            components may be Python objects in it: a function, a list of rows.
        resume: continue the run of this name from its last checkpoint.
        overwrite: delete a run of this name and start anew.
        **sections: sections of a config, merged into `config`: `model`, `data`, `environments`, `rollout`, `algorithm`,
            `trainer`, `evaluation`, `run` and others. Keys and values: docs/reference/config.md.

    Returns the run's folder: `run.metrics_lines("eval")`, `run.episodes()`, `run.report_path`.

    Raises ConfigError with every mistake of the config before anything is loaded, another ToolrlError where the run
    fails, and KeyboardInterrupt after Ctrl-C, which saves the run first.
    """
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
    **sections: Unpack[ConfigSections],
) -> RunFolder:
    """Evaluate a model on `data.eval`, as `toolrl eval` does.

        evaluated = toolrl.evaluate("runs/first", checkpoint="best")
        print(evaluated.metrics_lines("eval")[-1].metrics["accuracy"])

    Args:
        config: as in `toolrl.train`. A run's folder evaluates its model in a run of its own, `NAME-eval`, beside
            it; where that run was given Python objects, give them again by `data=…` and `environments=…`.
        checkpoint: of a run's folder `last`, `best` or a step.
        ablate: compare with episodes without tools, with answers of other calls, and with tools that fail.
        overwrite: delete an evaluation of this name and start anew.
        **sections: as in `toolrl.train`.
    """
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
    config: ConfigSource,
    *,
    tasks: int = 8,
    episodes: int | None = None,
    overwrite: bool = False,
    **sections: Unpack[ConfigSections],
) -> RunFolder:
    """Sample episodes without training, as `toolrl rollout` does: a first look at a config.

        run = toolrl.rollout("grpo.yaml", tasks=2)
        print(next(run.episodes()).episode.final_text)

    Args:
        config: as in `toolrl.train`.
        tasks: how many tasks of `data.train` to play, the first ones.
        episodes: episodes of each task; None for `algorithm.group_size`.
        overwrite: delete a run of this name and start anew.
        **sections: as in `toolrl.train`.
    """
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
    if registry.plugin(PYTHON_OBJECTS) is not None and (cluster.rollout_workers or cluster.trainer_workers):
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
    # Not called inside of the `except` of the check: an error of the run would show the check's as its context.
    try:
        status = _in_thread(command, args) if _in_event_loop() else command(args)
    except ToolrlError as error:
        if os.environ.get(DEBUG):
            raise
        # The message tells the cause; frames inside of toolrl would only hide it.
        raise error.with_traceback(None) from error.__cause__
    if status:
        raise KeyboardInterrupt
    return RunFolder.open(getattr(args, "directory", run_directory(loaded.config)))


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


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
