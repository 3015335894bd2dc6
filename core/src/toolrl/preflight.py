"""Checks of a run that take a second: made before torch is imported and anything is built or started."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path

from toolrl.building import build_component
from toolrl.config.components import check_options
from toolrl.config.data import DataUse, DataUses
from toolrl.config.frame import ComponentUse
from toolrl.config.load import LoadedConfig
from toolrl.config.model import Config
from toolrl.config.remarks import missing_files
from toolrl.errors import ConfigError, DataError, UnknownComponentError
from toolrl.loop.data import CheckedTasks, GoodTasks
from toolrl.loop.mixture import Mixture, NamedTasks, Part
from toolrl.plugins.registry import Registry
from toolrl.protocols import BuildContext, ChecksTasks, Cluster, TaskSource
from toolrl.runs.folder import RunFolder, run_and_checkpoint

SCORED = ("data.train", "data.eval")
"""Data sets whose tasks are played, and scored."""


def check_start(
    loaded: LoadedConfig,
    registry: Registry,
    data: Mapping[str, bool],
    *,
    resume: bool | None,
    overwrite: bool,
    kind: str | None = None,
) -> None:
    """Raise ToolrlError where the run can't start: a run folder that is taken or can't be written, data sets that the
    config doesn't name, files and packages that aren't there. `data` names the data sets that the command takes, such
    as `data.train`, and whether each has to be there; `resume` is None for a command that can't; `kind` is
    the run's."""
    config = loaded.config
    if overwrite:
        _check_not_inside(config)
    RunFolder.check(run_directory(config), resume=resume, overwrite=overwrite, kind=kind)
    uses = _uses(config)
    for where, needed in data.items():
        if needed and uses[where] is None:
            raise no_dataset(where)
    problems = [loaded.hide(line) for line in missing_files(config, registry, data)]
    if problems:
        raise ConfigError(problems, where=loaded.source, hint="`toolrl config check` finds such mistakes too.")


def run_directory(config: Config) -> Path:
    """The run's folder."""
    return Path(config.run.dir) / config.run.name


def no_dataset(where: str) -> ConfigError:
    """For a command that needs the data set which stands at this place in a config."""
    section, _, key = where.partition(".")
    hint = f"Add it, for example `{section}: {{{key}: {{use: jsonl, options: {{path: {key}.jsonl}}}}}}`."
    return ConfigError(f"{where}: needed here, but the config names no data set", hint=hint)


def _check_not_inside(config: Config) -> None:
    """Raise ConfigError where the model would be deleted, or the one that its adapter was made for."""
    found = run_and_checkpoint(config.model.path)
    folder = Path(config.model.path) if found is None else found[0]
    places = {config.model.path: folder}
    for file in (folder / "adapter_config.json", *folder.glob("checkpoints/*/adapter_config.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            base = str(json.loads(file.read_bytes())["base_model_name_or_path"])
            places[base] = Path(base)
    for path, place in places.items():
        if place.resolve().is_relative_to(run_directory(config).resolve()):
            raise ConfigError(
                f"model.path: {path!r} belongs to the run that --overwrite deletes",
                hint="Give the new run another name by --set run.name=NAME, or go on with the old one by --resume.",
            )


def build_datasets(
    registry: Registry, config: Config, run_dir: Path, wanted: Mapping[str, bool]
) -> dict[str, TaskSource]:
    """The data sets of these places, those left out that needn't be there and aren't."""
    uses = _uses(config)
    return {
        where: build_dataset(registry, config, run_dir, where, uses[where])
        for where, needed in wanted.items()
        if needed or uses[where] is not None
    }


def build_cluster(registry: Registry, config: Config, where: str) -> Cluster:
    """The component `cluster.use`, for the setting `where` that needs it. Raises ConfigError where there is none."""
    use = config.cluster.component
    context = BuildContext(name=use.use, where="cluster.use", seed=config.seed)
    try:
        built: Cluster = build_component(registry, "clusters", use, context, "cluster.use")
    except UnknownComponentError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error
    return built


def _uses(config: Config) -> dict[str, DataUses]:
    """What stands at the places of data sets."""
    sft = config.sft.data if config.sft is not None else None
    return {"data.train": config.data.train, "data.eval": config.data.eval, "sft.data": sft}


def task_checks(registry: Registry, config: Config) -> dict[str, dict[str, ChecksTasks]]:
    """The rewards of each environment that check tasks, by their names in the config: their options, or the reward
    itself if it is a Python object. Nothing is built."""
    found: dict[str, dict[str, ChecksTasks]] = {}
    for name, environment in config.environments.items():
        checks = found[name] = {}
        for use in environment.rewards:
            component = registry.get("rewards", use.use).component
            options, _ = check_options(component, use.options)
            given = inspect.unwrap(component.load()) if options is None else options
            if isinstance(given, ChecksTasks) and not isinstance(given, type):
                checks[use.name or use.use] = given
    return found


def build_dataset(
    registry: Registry, config: Config, run_dir: Path, where: str, use: DataUses
) -> CheckedTasks | GoodTasks | Mixture:
    """A data set, or the mixture of a list of them; it needs nothing of the model. Raises ConfigError where there is
    none, DataError for one without tasks."""
    if use is None:
        raise no_dataset(where)
    if isinstance(use, ComponentUse):
        return _one_dataset(registry, config, run_dir, where, use)
    parts = [_one_dataset(registry, config, run_dir, f"{where}[{index}]", it) for index, it in enumerate(use)]
    return Mixture([Part(it.label, tasks, getattr(it, "share", None)) for it, tasks in zip(use, parts, strict=True)])


def _one_dataset(
    registry: Registry, config: Config, run_dir: Path, where: str, use: ComponentUse
) -> CheckedTasks | GoodTasks:
    context = BuildContext(name=use.use, where=where, seed=config.seed, run_dir=run_dir)
    source: TaskSource = build_component(registry, "datasets", use, context, where)
    if len(source) == 0:
        raise DataError("the data set is empty", where=where, hint="Check its path, split and limit.")
    if isinstance(use, DataUse):
        source = NamedTasks(source, use.label, use.environment)
    rewards = task_checks(registry, config) if where.startswith(SCORED) else None
    tasks = CheckedTasks(source, config.environments, where, rewards)
    return GoodTasks(tasks, where) if config.data.bad_rows == "skip" else tasks
